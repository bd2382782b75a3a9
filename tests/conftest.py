import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import redis
from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import ProgrammingError, connection
from django.test import Client as HttpClient
from django.test import TransactionTestCase
from django_redis import get_redis_connection

import servers
from notifications_counter import counters
from notifications_counter.counters import BUILT_IN, all_counters, unread, unseen
from notifications_counter.declaration import declarations
from notifications_counter.models import CounterState
from notifications_counter.redis.client import Client, client_of
from notifications_counter.testing import isolated_counters

from .support import in_use

numbers = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker a database of its own in Redis, because all keys there are scanned after each test. Start a
    Redis for a pytest that `python -m tests` has not called."""
    if "TEST_REDIS_URL" not in os.environ:
        stack = ExitStack()
        config.add_cleanup(stack.close)
        try:
            server = stack.enter_context(servers.redis())
        except servers.Missing as reason:
            pytest.exit(f"There is {reason}. `make test` installs one.", pytest.ExitCode.USAGE_ERROR)
        os.environ["TEST_REDIS_URL"] = settings.CACHES["default"]["LOCATION"] = server.url
    if hasattr(config, "workerinput"):
        server, _, _ = settings.CACHES["default"]["LOCATION"].rpartition("/")
        url = f"{server}/{int(config.workerinput['workerid'].removeprefix('gw')) + 1}"
        os.environ["TEST_REDIS_URL"] = settings.CACHES["default"]["LOCATION"] = url


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell `python -m tests` which tests failed, and which had to be skipped because this machine lacks something."""
    if path := os.environ.get("TEST_OUTCOMES"):
        stats = terminalreporter.stats
        failed = dict.fromkeys(report.nodeid for report in [*stats.get("failed", []), *stats.get("error", [])])
        reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in stats.get("skipped", [])]
        missing = [reason for reason in reasons if reason.startswith(("missing: ", "could not import "))]
        Path(path).write_text(json.dumps({"failed": list(failed), "missing": missing}))


@pytest.fixture(autouse=True, scope="session")
def _same_session() -> Iterator[None]:
    """Go on with the connection after a test that commits. What a new session of PostgreSQL has to learn of the tables
    takes longer than most tests."""
    with mock.patch.object(TransactionTestCase, "_should_reload_connections", return_value=False):
        yield


@pytest.fixture(autouse=True, scope="session")
def _known_server(django_db_blocker: Any) -> None:
    """MariaDB has told its version, which the types of columns depend on. Checks look at these without a database."""
    if connection.vendor == "mysql":
        with django_db_blocker.unblock():
            assert connection.mysql_version


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """What `migrate` has noted is there for the first test only: those that commit flush all tables."""
    with django_db_blocker.unblock(), suppress(ProgrammingError):  # tenants have tables of their own
        CounterState.objects.all().delete()


@pytest.fixture(autouse=True)
def _own_keys() -> Iterator[None]:
    with isolated_counters():
        yield


@pytest.fixture
def healed() -> None:
    """The counter of unread notifications after its first heal: from here on reads trust Redis."""
    unread.heal()


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that leaves everybody these permissions of the app, and no others."""

    def allow(*permissions: str) -> None:
        has = {f"notifications_counter.{permission}" for permission in permissions}
        monkeypatch.setattr(get_user_model(), "has_perm", lambda self, name, obj=None: name in has)

    return allow


@pytest.fixture
def with_unseen() -> Iterator[None]:
    """The counter of unseen notifications is in use, and both are healed."""
    with in_use("unseen"):
        unread.heal()
        unseen.heal()
        yield


@pytest.fixture
def with_kinds() -> Iterator[None]:
    """All built-in counters are in use and healed."""
    with in_use(*BUILT_IN):
        for counter in BUILT_IN.values():
            counter.heal()
        yield


@pytest.fixture
def all_healed() -> None:
    """Every counter after its first heal."""
    for counter in all_counters():
        counter.heal()


@pytest.fixture
def few_healed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every counter after its first heal. There are only those of notifications and one more, because commands, tasks
    and pages look at each."""
    few = {*BUILT_IN, "open_tasks"}
    monkeypatch.setattr(counters, "declarations", lambda: [each for each in declarations() if each.name in few])
    for counter in all_counters():
        counter.heal()


@pytest.fixture
def through_pgbouncer() -> Iterator[None]:
    """Each transaction on PostgreSQL has another session than the one before it."""
    here = connection.settings_dict
    with ExitStack() as stack:
        try:
            bouncer = stack.enter_context(servers.pgbouncer(here["PORT"]))
        except servers.Missing as reason:
            pytest.skip(f"missing: {reason}")
        stack.enter_context(mock.patch.dict(here, PORT=bouncer.port, DISABLE_SERVER_SIDE_CURSORS=True))
        stack.callback(connection.close)
        connection.close()
        others = [connection.copy() for _ in range(3)]
        for other in others:
            other.set_autocommit(False)
            other.cursor().execute("SELECT 1")
        for other in others:
            other.rollback()
            other.close()
        yield


@pytest.fixture
def use(settings: Any) -> Iterator[Callable[..., Client]]:
    """A function that puts the cache on another server, or gives it other options, and returns the client."""
    before = settings.CACHES

    def put(location: str = "", **options: Any) -> Client:
        cache = {**before["default"], "OPTIONS": {**before["default"]["OPTIONS"], **options}}
        if location:  # django-redis keeps a pool for each address, and servers take turns on a port
            cache["LOCATION"] = f"{location}#{next(numbers)}"
        settings.CACHES = {"default": cache}
        return client_of("default")

    yield put
    settings.CACHES = before  # the keys of the test are deleted there


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """A Redis of the test's own."""
    with servers.redis() as server:
        yield server


@pytest.fixture
def other(server: servers.Server) -> Iterator[redis.Redis]:
    """A client of that server."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def redis_client() -> redis.Redis:
    return get_redis_connection("default")


@pytest.fixture
def make_user() -> Callable[..., Any]:
    """A function that creates one more user of the kind under test."""
    numbers = itertools.count(1)
    return lambda **fields: get_user_model().objects.create_user(**{"username": f"user{next(numbers)}", **fields})


@pytest.fixture
def alice(make_user: Callable[..., Any]) -> Any:
    return make_user(username="alice")


@pytest.fixture
def bob(make_user: Callable[..., Any]) -> Any:
    return make_user(username="bob")


@pytest.fixture
def client(alice: Any) -> HttpClient:
    """The browser of Alice."""
    client = HttpClient()
    client.force_login(alice)
    return client


@pytest.fixture
def house() -> Any:
    return apps.get_model("tasks.Project").objects.create()


@pytest.fixture
def garden() -> Any:
    return apps.get_model("tasks.Project").objects.create()


@pytest.fixture
def child_environment() -> dict[str, str]:
    """The environment of a process that is to work on this test's database and under its keys."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TEST_DATABASE_NAME": str(connection.settings_dict["NAME"]),
        "TEST_KEY_PREFIX": settings.NOTIFICATIONS_COUNTER["KEY_PREFIX"],
    }
