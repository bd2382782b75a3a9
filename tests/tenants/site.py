"""A schema for each tenant. Run by ``test_tenants.py``, because it needs settings of its own."""

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from notifications_counter import events
from notifications_counter.counters import unread
from notifications_counter.models import DoubtRequest, Notification
from notifications_counter.monitoring import dashboard
from tests.support import assert_exact, assert_reads, redis_out_of_reach

from .common import NAMES, User, at, check, drop, notify, tenants, users  # noqa: F401
from .models import Client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("tenants")]


def test_a_clone_has_its_own_keys(settings: Any) -> None:
    """Under the name of an earlier one, it has that one's keys, but not its counts after the flusher's next run."""
    call_command("flush_counters", verbosity=0)
    with at("green"):
        events.record_event({"type": "login"})
    settings.TENANT_CREATION_FAKES_MIGRATIONS, settings.TENANT_BASE_SCHEMA = True, "green"
    for number in (2, 0):
        Client.objects.create(schema_name="pink", name="pink")
        with at("pink"):
            if number:
                assert (unread.count(users()[0]), events.count_events()) == (0, 0)
            else:
                call_command("flush_counters", schema="pink", verbosity=0)
            notify(number)
            assert_reads(*users())
        call_command("flush_counters", verbosity=0)
        check("pink")
        drop("pink")


def test_all_is_well_before_the_first_tenant(capsys: Any) -> None:
    for name in NAMES:
        drop(name)
    call_command("flush_counters")
    call_command("flush_counters", check=True)
    assert capsys.readouterr().out == "All is well. Nothing waits.\n"


def test_one_transaction_in_two_schemas() -> None:
    call_command("flush_counters", verbosity=0)
    with transaction.atomic():
        with at("blue"):
            Notification.objects.create(user=users()[0], title="blue")
        with transaction.atomic(), at("green"):
            Notification.objects.bulk_create(Notification(user=users()[0], title="green") for _ in range(2))
    for name, count in (("blue", 1), ("green", 2), ("red", 0)):
        with at(name):
            assert unread.count(users()[0]) == count
            assert_exact(*users())


def test_requests_go_to_the_schema_of_their_rows() -> None:
    call_command("flush_counters", verbosity=0)
    with redis_out_of_reach(), transaction.atomic(), at("blue"):
        Notification.objects.create(user=users()[0], title="blue")
        connection.set_schema("green")  # the transaction commits there
    connection.set_schema_to_public()
    for name, asked in (("blue", True), ("green", False)):
        with at(name):
            assert DoubtRequest.objects.exists() == asked
    call_command("flush_counters", verbosity=0)
    check("blue")


def test_the_dashboard_shows_each_tenant_outside() -> None:
    names = {f"unread ({name})" for name in NAMES}
    assert {local.name for local in dashboard.visible() if local.counter is unread} == names
    assert dashboard.page("hour", "unread (green)")["counter"] == "unread (green)"
    assert connection.schema_name == "public"
