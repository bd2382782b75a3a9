"""What we take for granted about private and undocumented names of other packages, against the installed versions."""

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django_redis.pool import ConnectionFactory

import notifications_counter
import servers
from notifications_counter import internals

pytestmark = pytest.mark.once

PACKAGE = Path(notifications_counter.__file__).parent

# ---------------------------------------------------------------- where such names are used
UNDOCUMENTED = {
    "can_read",
    "connection_class",
    "connection_factory",
    "connection_kwargs",
    "disconnect_connection_pools",
    "get_redis_connection",
    "nodes_manager",
    "pid",
    "pool_cls_kwargs",
    "send_packed_command",
}
"""Names of redis-py and django-redis that look public, and are not documented."""

DOCUMENTED = {"_asdict", "_replace", "_base_manager", "_default_manager", "_meta", "_state"}
"""Names of Python and Django that look private, and are documented."""

NOT_MOVED_YET = {"_commit", "_has_been_logged", "_raw_delete"}
"""Private names of Django that are still used where they are needed."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def names_in(tree: ast.AST) -> Iterator[str]:
    """Names of attributes of other objects, and imported names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (part for alias in node.names for part in [*(node.module or "").split("."), alias.name])


def defined_in(tree: ast.AST) -> set[str]:
    """Names of functions, and attributes that an object sets on itself."""
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)} | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def test_names_that_are_not_public_are_used_in_one_module():
    trees = {
        path.relative_to(PACKAGE): ast.parse(path.read_text())
        for path in PACKAGE.rglob("*.py")
        if path.name != "internals.py"
    }
    ours = set().union(*map(defined_in, trees.values())) - NOT_MOVED_YET  # some of which we override
    used = {(str(path), name) for path, tree in trees.items() for name in names_in(tree)}
    private = {(path, name) for path, name in used if is_private(name) and name not in ours}
    assert {name for _, name in private} <= DOCUMENTED | NOT_MOVED_YET, private
    assert {name for _, name in private} >= NOT_MOVED_YET, "moved: leave them out of the list"
    imported = {"get_redis_connection"}  # django-redis documents a function of this name
    assert not {(path, name) for path, name in used if name in UNDOCUMENTED - imported}


def test_internals_import_nothing_of_ours():
    tree = ast.parse((PACKAGE / "internals.py").read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    assert "notifications_counter" not in names_in(tree)


# -------------------------------------------------------------------- redis-py: connections
@pytest.fixture
def connection() -> Iterator[Any]:
    """A connection to the Redis of the tests, made outside of its pool."""
    pool = redis.ConnectionPool.from_url(os.environ["TEST_REDIS_URL"], client_name="made-outside", protocol=2)
    connection = internals.new_connection(pool)
    yield connection
    connection.disconnect()
    assert not pool._in_use_connections


def ask(connection: Any, *words: bytes) -> Any:
    packed = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    internals.send_packed(connection, packed)
    return connection.read_response()


def test_a_new_connection_has_the_options_of_its_pool(connection):
    assert ask(connection, b"CLIENT", b"GETNAME") == b"made-outside"


def test_a_packed_command_is_sent_as_it_is(connection):
    assert ask(connection, b"ECHO", b"\xff\r\n\0") == b"\xff\r\n\0"


def test_input_is_seen_before_it_is_read(connection):
    internals.send_packed(connection, b"*1\r\n$4\r\nPING\r\n" * 2)
    deadline = time.monotonic() + 10
    while not internals.has_input(connection):
        assert time.monotonic() < deadline
    assert connection.read_response() == connection.read_response() == b"PONG"
    assert not internals.has_input(connection)


def test_the_end_of_a_connection_is_seen(connection):
    number = ask(connection, b"CLIENT", b"ID")
    assert not internals.has_input(connection)
    with redis.Redis.from_url(os.environ["TEST_REDIS_URL"]) as other:
        other.client_kill_filter(_id=number)
    deadline = time.monotonic() + 10
    while not ended(connection):
        assert time.monotonic() < deadline


def ended(connection: Any) -> bool:
    try:
        return internals.has_input(connection)
    except redis.ConnectionError:
        return True


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # pytest-xdist has threads
def test_a_forked_process_knows_connections_that_it_inherited(connection):
    connection.connect()
    assert not internals.is_inherited(connection)
    pid = os.fork()
    if not pid:
        os._exit(42 if internals.is_inherited(connection) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42


def test_the_default_timeout_is_that_of_a_connection():
    assert internals.default_socket_timeout() == redis.Connection().socket_timeout


# ------------------------------------------------------------------------ redis-py: clusters
def test_the_nodes_of_a_cluster():
    with servers.redis_cluster() as nodes:
        cluster = redis.RedisCluster.from_url(nodes[0].url)
        ports = {internals.node_pool(cluster, f"key:{i}").connection_kwargs["port"] for i in range(50)}
        assert ports == {node.port for node in nodes}
        known = cluster.nodes_manager.slots_cache
        cluster.nodes_manager.slots_cache = {}
        internals.reload_nodes(cluster)
        assert cluster.nodes_manager.slots_cache.keys() == known.keys()
        internals.disconnect_nodes(cluster)
        assert cluster.set("still", "usable")
        cluster.close()


# ----------------------------------------------------------------------------- django-redis
def test_a_cache_of_django_redis_has_a_connection_factory(settings):
    assert isinstance(internals.connection_factory(caches["default"]), ConnectionFactory)


def test_another_cache_has_none(settings):
    settings.CACHES = {**settings.CACHES, "other": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    assert internals.connection_factory(caches["other"]) is None


def test_a_connection_factory_has_the_options_of_the_pool():
    options = {"max_connections": 3}
    assert internals.pool_options(ConnectionFactory({"CONNECTION_POOL_KWARGS": options})) == options
