"""A schema for each tenant. Run by ``test_tenants.py``, because it needs settings of its own."""

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from notifications_counter import events
from notifications_counter.counters import unread
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.monitoring.status import read_counter
from tests.support import assert_exact, assert_reads, entries, redis_out_of_reach, unheard

from .common import NAMES, at, check, drop, make, notify, tenants, users  # noqa: F401
from .models import Client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("tenants")]


def test_a_schema_that_is_made_again_begins_without_counts() -> None:
    with at("blue"):
        unread.heal()
        notify()
        assert_reads(*users())
    drop("blue")
    call_command("flush_counters", verbosity=0)
    make("blue")
    with at("blue"):
        assert_reads(*users())
        assert unread.count(users()[0]) == 0
        notify()
    call_command("flush_counters", verbosity=0)
    check("blue")


def test_one_transaction_in_two_schemas() -> None:
    call_command("flush_counters", verbosity=0)
    with transaction.atomic():
        with at("blue"):
            Notification.objects.create(user=users()[0], title="blue")
        with transaction.atomic(), at("green"):
            Notification.objects.bulk_create(Notification(user=users()[0], title="green") for _ in range(2))
        try:
            with transaction.atomic(), at("red"):
                Notification.objects.create(user=users()[0], title="red")
                raise KeyError
        except KeyError:
            pass
    for name, count in (("blue", 1), ("green", 2), ("red", 0)):
        with at(name):
            assert unread.count(users()[0]) == count
            assert_exact(*users(), in_doubt=None)


def test_requests_go_to_the_schema_of_their_rows() -> None:
    call_command("flush_counters", verbosity=0)
    with redis_out_of_reach(), transaction.atomic(), at("blue"):
        Notification.objects.create(user=users()[0], title="blue")
        connection.set_schema("green")  # the transaction commits there
    connection.set_schema_to_public()
    for name, asked in (("blue", True), ("green", False)):
        with at(name):
            assert RecountRequest.objects.exists() == asked
    call_command("flush_counters", verbosity=0)
    check("blue")


def test_commands_name_a_schema() -> None:
    call_command("flush_counters", verbosity=0)
    with at("red"):
        notify()
    with pytest.raises(CommandError, match=r"unread \(red\): The oldest change"):
        call_command("flush_counters", check=True, max_age=-1)
    assert connection.schema_name == "public"
    with pytest.raises(CommandError, match="'pink'"):
        call_command("flush_counters", schema="pink")


def test_each_tenant_is_compared_with_its_rows() -> None:
    call_command("flush_counters", verbosity=0)
    for name in NAMES:
        with at(name):
            unheard(Notification.objects.bulk_create, [Notification(user=users()[0], title="unheard")])
    with entries(VERIFY_SECONDS=0.001):
        call_command("flush_counters", verbosity=0)
    call_command("flush_counters", verbosity=0)
    for name in NAMES:
        with at(name):
            assert read_counter(unread).mismatched == 1
        check(name)


def test_a_schema_is_known_while_its_database_is_out_of_reach(monkeypatch: Any) -> None:
    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "PORT", "1")
        with pytest.raises(CommandError, match="refused"):
            call_command("flush_counters", schema="blue")
    connection.close()


def test_a_clone_begins_without_the_counts_of_an_earlier_one(settings: Any) -> None:
    call_command("flush_counters", verbosity=0)
    settings.TENANT_CREATION_FAKES_MIGRATIONS, settings.TENANT_BASE_SCHEMA = True, "green"
    for number in (2, 0):
        Client.objects.create(schema_name="pink", name="pink")
        with at("pink"):
            assert (unread.count(users()[0]), events.count_events()) == (0, 0)
            notify(number)
            events.record_event({"type": "login"})
            assert_reads(*users())
        call_command("flush_counters", verbosity=0)
        check("pink")
        drop("pink")
