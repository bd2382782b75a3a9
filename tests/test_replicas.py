"""A router sends reads to a replica that lags behind: counts come from the primary."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from unittest import mock

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import servers
from notifications_counter.counters import unread, unread_by_kind
from notifications_counter.exceptions import ConfigurationError
from notifications_counter.models import Notification, UserNotificationsCount
from notifications_counter.monitoring.status import read_counter
from tests.support import entries, notify, redis_out_of_reach, unheard, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "replica"]),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="One database with a replica is enough."),
    pytest.mark.slow,
]

objects = Notification.objects


class PrimaryReplicaRouter:
    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


@pytest.fixture(autouse=True, scope="module")
def _standby() -> Iterator[None]:
    """A replica, as a site declares it."""
    here = connection.settings_dict
    try:
        with servers.postgresql(standby_of=here["PORT"]) as standby:
            connections.settings["replica"] = {**here, "PORT": standby.port, "TEST": {"MIRROR": "default"}}
            yield
            connections["replica"].close()
            del connections["replica"], connections.settings["replica"]
    except servers.Missing as reason:
        pytest.skip(f"missing: {reason}")


def ask(alias: str, statement: str, *params: Any) -> Any:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchone()[0]


@pytest.fixture
def replica(with_kinds: None, alice: Any) -> Iterator[CaptureQueriesContext]:
    """What the replica is asked. It has three unread notifications of alice, who has read them since, and has got two
    others."""
    notify(alice, 3)
    ask("replica", "SELECT pg_wal_replay_resume()::text")
    here = ask("default", "SELECT pg_current_wal_insert_lsn()::text")
    wait_until(lambda: ask("replica", "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", here))
    ask("replica", "SELECT pg_wal_replay_pause()::text")
    wait_until(lambda: ask("replica", "SELECT pg_get_wal_replay_pause_state()") == "paused")
    with override_settings(DATABASE_ROUTERS=[PrimaryReplicaRouter()]):
        objects.for_user(alice).update(read_at=timezone.now())
        objects.bulk_create(Notification(user=alice, title="new", kind="new") for _ in range(2))
        assert objects.unread().count() == 3  # in the replica
        with CaptureQueriesContext(connections["replica"]) as asked:
            yield asked


def assert_all_reads(user: Any, count: int = 2) -> None:
    assert unread.count(user) == count
    assert unread.top(1) == [(user.pk, count)]
    assert unread_by_kind.breakdown(user) == {"new": count}
    unread.attach([user], "news")
    assert user.news == count


def test_reads(replica, alice, redis_client):
    for counter in (unread, unread_by_kind):
        counter.flush()
    assert_all_reads(alice)
    redis_client.delete(*redis_client.scan_iter(match="{*}:*:*:*"))
    assert_all_reads(alice)
    with redis_out_of_reach():
        assert_all_reads(alice)
    with transaction.atomic():
        objects.create(user=alice, title="new", kind="new")
        assert_all_reads(alice, 3)
    assert not len(replica)


def test_a_standby_at_the_address_of_the_primary(replica, alice):
    """What it counts is cached for nobody, and not stored."""
    unread_by_kind.flush()
    unread.flush()
    connection.close()
    its_port = connections["replica"].settings_dict["PORT"]
    with mock.patch.dict(connection.settings_dict, PORT=its_port), closing(connection):
        assert unread.count(alice) == 3
        with pytest.raises(ConfigurationError, match="is a standby"):
            unread.flush()
    assert_all_reads(alice)


def test_maintenance(replica, few_healed, alice):
    call_command("flush_counters", verbosity=0)
    unheard(objects.bulk_create, [Notification(user=alice, title="new", kind="new")])
    with entries(WALK_SECONDS=0.001):
        call_command("flush_counters", verbosity=0)
    assert read_counter(unread).wrong == 1
    unheard(objects.using("default").filter(title="new").delete)
    call_command("recount_counters", verbosity=0)
    call_command("flush_counters", verbosity=0)
    assert UserNotificationsCount.objects.using("default").get(pk=alice.pk).unread_count == 0
    assert not len(replica)
