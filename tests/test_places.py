"""Which places hold a counter, and what happens at each of them, without any server."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError

from notifications_counter import failures
from notifications_counter import places as module
from notifications_counter.counters import unread
from notifications_counter.databases.routing import working_on
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.failures import Failures, at_each
from notifications_counter.models import DatabaseId
from notifications_counter.places import LocalCounter, Place, local_counters, visible_counters
from notifications_counter.places import _has_tables as has_tables
from notifications_counter.places import _places_in as places_in

pytestmark = pytest.mark.once

HERE, TENANT = Place("default"), Place("refused", "tenant")
PLACES = [HERE, Place("blue"), Place("new"), Place("mirror"), Place("refused"), TENANT]


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica, a database without our tables, and one where the router wants none, but a tenant has some."""
    connections = {
        alias: SimpleNamespace(settings_dict={"TEST": {"MIRROR": "default" if alias == "mirror" else None}})
        for alias in dict.fromkeys(place.alias for place in PLACES)
    }
    monkeypatch.setattr(module, "connections", connections)
    monkeypatch.setattr(module, "_places_in", lambda alias, schema: [place for place in PLACES if place.alias == alias])
    monkeypatch.setattr(module, "_has_tables", lambda alias: alias != "new")
    monkeypatch.setattr(module.router, "allow_migrate_model", lambda alias, model: alias != "refused")


def test_the_places_of_a_site(monkeypatch):
    def found(first: str = "default", **given: Any) -> list[Place]:
        with working_on(first):
            return [local.place for local in local_counters([unread], **given)]

    assert found() == [HERE, Place("blue"), TENANT]
    assert found("mirror")[0] == Place("mirror")
    assert found("refused")[0] == Place("refused")
    assert found(database="blue") == [Place("blue")]
    assert found(schema="tenant") == [TENANT]
    assert found("new")[0] == Place("new")  # where the tables will be


def test_a_database_out_of_reach_is_a_place_and_one_without_our_tables_is_none(monkeypatch):
    closed = mock.Mock()
    connection = SimpleNamespace(introspection=mock.Mock(), close_if_unusable_or_obsolete=closed)
    monkeypatch.setattr(module, "connections", {"blue": connection})
    names = connection.introspection.table_names
    names.side_effect = [["other"], [DatabaseId._meta.db_table], OperationalError("gone"), ImproperlyConfigured()]
    assert [has_tables("blue") for _ in range(4)] == [False, True, True, False]
    closed.assert_called_once()
    connection.set_schema = connection.cursor = mock.Mock(side_effect=OperationalError("gone"))
    assert places_in("blue", "tenant") == [TENANT._replace(alias="blue")]
    assert closed.call_count == 2


def test_all_places_are_seen_outside_of_tenants():
    assert [local.place for local in visible_counters([unread])] == [HERE, Place("blue"), TENANT]
    assert [local.place for local in visible_counters([unread], for_users=True)] == [HERE]
    with working_on("blue"):
        assert [local.place for local in visible_counters([unread])] == [Place("blue")]


def test_an_outage_of_redis_is_logged_once_and_a_mistake_is_raised(monkeypatch, caplog):
    closed = SimpleNamespace(in_atomic_block=False, close=lambda: None)
    for each in (module, failures):
        monkeypatch.setattr(each, "connections", {"default": closed})
    errors: dict[str, Exception] = {"a": BufferUnavailable("Redis"), "b": BufferUnavailable("Redis")}

    def work(local: LocalCounter[Any]) -> None:
        if local.name in errors:
            raise errors[local.name]

    def run() -> None:
        at_each([LocalCounter(name, unread, HERE) for name in ("a", "b", "c", "d")], work)

    with pytest.raises(BufferUnavailable):
        run()
    assert not caplog.records
    errors |= {"c": OperationalError("gone"), "d": KeyError("mistake")}
    with pytest.raises(KeyError) as mistake:
        run()
    assert mistake.value.__notes__ == ["d"]
    assert [record.reason.partition(":")[0] for record in caplog.records] == ["a", "c"]


def test_a_loop_logs_an_outage_once_and_its_end(caplog):
    failures = Failures("flush_counters")

    def run(*errors: Exception) -> tuple[bool, int]:
        for error in errors:
            with failures.caught():
                raise error
        return failures.end_run(), len(caplog.records)

    gone, mistake = OperationalError("gone"), KeyError("mistake")
    runs = [run(), run(gone), run(gone, mistake), run(mistake), run(), run()]
    assert runs == [(False, 0), (True, 1), (True, 2), (True, 2), (False, 3), (False, 3)]
    logged = [record for record in caplog.records if record.name == "notifications_counter"]
    assert [(record.event, record.getMessage()) for record in logged] == [
        ("run_failed", "gone (flush_counters is trying again)"),
        ("run_failed", "'mistake' (flush_counters is trying again)"),
        ("run_works", "flush_counters works again."),
    ]
    assert [bool(record.exc_info) for record in logged] == [False, True, False]
