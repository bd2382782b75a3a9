"""What we take for granted about private and undocumented names of other packages, against the installed versions."""

from contextlib import suppress
from typing import Any

import django
import pytest
from django.db import connection, connections, router, transaction

from notifications_counter import internals
from notifications_counter.internals import DeleteQuery, InsertQuery, OnConflict, Query, UpdateQuery, WhereNode
from notifications_counter.models import Notification
from notifications_counter.signals import counts_changed
from tests.documented import documented, imported, of_others
from tests.source import trees
from tests.support import OtherConnection

pytestmark = pytest.mark.once


# ---------------------------------------------------------------- where such names are used
OF_OTHERS = {
    "asgiref": "asgiref.sync",
    "redis-py": "redis.backoff redis.connection redis.exceptions redis.retry MaxConnectionsError"
    " ConnectionError NoBackoff NoScriptError RedisCluster RedisClusterException RedisError ResponseError Retry"
    " can_read connection_pool deregister_connect_callback disconnect_connection_pools execute_command get_message"
    " get_node_from_key get_primaries max_connections pack_commands parse_url ping pipeline pubsub read_response"
    " register_connect_callback scan_iter send_command send_packed_command subscribe unsubscribe",
    "django-redis": "django_redis django_redis.cache django_redis.client django_redis.pool ConnectionFactory"
    " DefaultClient ShardClient get_redis_connection pool_cls_kwargs",
    "drivers of databases": "rowcount sqlstate",
    "django-tenants": "PUBLIC_SCHEMA_NAME schema_name set_schema set_tenant tenant",
    "django-health-check": "health_check.base health_check.exceptions HealthCheck ServiceUnavailable ServiceWarning",
    "prometheus_client": "prometheus_client prometheus_client.core prometheus_client.exposition"
    " prometheus_client.registry Collector CollectorRegistry CounterMetricFamily GaugeMetricFamily Metric add_metric"
    " choose_encoder",
    "Python": "__notes__ iterdir joinpath",
    "us, on an object of Django": "counter_ledger is_hook shown_user",
}


def django_objects() -> dict[str, list[Any]]:
    """Objects that have the attributes in ``internals.ATTRIBUTES``."""
    queries = [kind(Notification) for kind in (Query, InsertQuery, UpdateQuery, DeleteQuery)]
    queries[1].insert_values([], [])
    return {
        "connection": [connection],
        "connections": [connections],
        "features": [connection.features],
        "ops": [connection.ops],
        "introspection": [connection.introspection],
        "on_conflict": [OnConflict],
        "options": [Notification._meta],
        "router": [router],
        "query": queries,
        "where": [WhereNode()],
        "compiler": [query.get_compiler("default") for query in queries],
        "field": [*Notification._meta.fields, Notification],
        "signal": [counts_changed],
    }


def test_undocumented_names_are_used_in_one_module():
    """And none of redis-py and django-redis."""
    ours = [module for path, tree in trees().items() if path.startswith("internals/") for module in imported(tree)]
    assert not [module for module in ours if module.split(".")[0] in ("redis", "django_redis")]
    unknown = of_others() - documented() - set(" ".join(OF_OTHERS.values()).split())
    assert unknown == set(), "if these are documented, run python -m tests.documented"


# ------------------------------------------------------------------------------------ Django
NEEDS = {
    "can_return_rows_from_update": django.VERSION >= (6, 0),
    "execute_returning_sql": django.VERSION >= (6, 0),
    "is_in_memory_db": connection.vendor == "sqlite",
    "mysql_is_mariadb": connection.vendor == "mysql",
    "pg_version": connection.vendor == "postgresql",
}


@pytest.mark.django_db
@pytest.mark.parametrize("kind", internals.ATTRIBUTES)
def test_the_attributes_are_there(kind):
    for name in internals.ATTRIBUTES[kind]:
        assert any(hasattr(thing, name) for thing in django_objects()[kind]) or not NEEDS.get(name, True), name


@pytest.mark.django_db(transaction=True)
def test_a_commit_comes_after_the_atomic_block_and_before_the_hooks():
    said: list[Any] = []

    def run() -> None:
        connection = connections["default"]  # of this thread

        def commit() -> None:
            said.append(("commit", connection.in_atomic_block, [entry[0] for entry in connection.run_on_commit]))

        internals.watch_transactions(connection, commit, lambda *done: said.append(done), lambda: False)
        with suppress(ValueError), transaction.atomic():
            transaction.on_commit(lambda: said.append("of another transaction"))
            raise ValueError
        with transaction.atomic():
            assert connection.commit_on_exit
            transaction.on_commit(lambda: said.append("hook"))
            with suppress(ValueError), transaction.atomic():
                transaction.on_commit(lambda: said.append("rolled back"))
                connection.run_on_commit.append((set(), lambda: said.append("without a savepoint"), True))
                raise ValueError

    with OtherConnection() as other:
        other.run(run)
    assert said == [(True, False), ("commit", False, [set(), set()]), "hook", "without a savepoint"]
