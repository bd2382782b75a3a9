"""A schema for each tenant. Run by ``test_tenants.py``, because it needs settings of its own."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django_tenants.utils import schema_context

from notifications_counter.counters import unread
from notifications_counter.maintenance.verification import pace
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.monitoring.state import look_at
from tests.support import assert_exact, assert_reads, entries, redis_out_of_reach, rows, stored, unheard

from .models import Client

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = ("blue", "green", "red")
User = get_user_model()


def make(name: str) -> Client:
    tenant = Client.objects.create(schema_name=name, name=name)
    with schema_context(name):
        for i in (1, 2):
            User.objects.create_user(username=f"user{i}")
    return tenant


@pytest.fixture
def tenants() -> Iterator[list[Client]]:
    tenants = [make(name) for name in NAMES]
    yield tenants
    connection.set_schema_to_public()
    for tenant in Client.objects.all():
        tenant.delete(force_drop=True)


def users() -> list[Any]:
    return list(User.objects.order_by("username"))


def check(name: str) -> None:
    with schema_context(name):
        assert_reads(*users())
        assert [stored(user) for user in users()] == [rows(user) for user in users()]


def change(chance: random.Random) -> None:
    user = chance.choice(users())
    if chance.random() < 0.6:
        Notification.objects.create(user=user, title="new")
    elif chance.random() < 0.5:
        Notification.objects.filter(user=user, read_at=None).mark_as_read()
    else:
        Notification.objects.filter(user=user)[:1].get().delete() if rows(user) else None
    assert_reads(*users())


@pytest.mark.parametrize("seed", range(3))
def test_random_histories(tenants: list[Client], seed: int) -> None:
    chance, names = random.Random(seed), list(NAMES)
    for step in range(60):
        with schema_context(chance.choice(names)):
            change(chance)
        if step % 15 == 10:
            call_command("flush_counters", verbosity=0)
        if step == 20:
            make("yellow")
            names.append("yellow")
        if step == 40:
            names.remove("green")
            tenants[1].delete(force_drop=True)
    call_command("flush_counters", verbosity=0)
    call_command("flush_counters", check=True, verbosity=0)
    for name in names:
        check(name)


def test_a_schema_that_is_made_again_begins_without_counts(tenants: list[Client]) -> None:
    with schema_context("blue"):
        unread.heal()
        Notification.objects.create(user=users()[0], title="old")
        assert_reads(*users())
    tenants[0].delete(force_drop=True)
    make("blue")
    with schema_context("blue"):
        assert_reads(*users())
        assert unread.count(users()[0]) == 0


def test_one_transaction_in_two_schemas(tenants: list[Client]) -> None:
    call_command("flush_counters", verbosity=0)
    with transaction.atomic():
        with schema_context("blue"):
            Notification.objects.create(user=users()[0], title="blue")
        with transaction.atomic(), schema_context("green"):
            Notification.objects.bulk_create(Notification(user=users()[0], title="green") for _ in range(2))
        try:
            with transaction.atomic(), schema_context("red"):
                Notification.objects.create(user=users()[0], title="red")
                raise KeyError
        except KeyError:
            pass
    for name, count in (("blue", 1), ("green", 2), ("red", 0)):
        with schema_context(name):
            assert unread.count(users()[0]) == count
            assert_exact(*users())


def test_requests_go_to_the_schema_of_their_rows(tenants: list[Client]) -> None:
    call_command("flush_counters", verbosity=0)
    with redis_out_of_reach(), transaction.atomic(), schema_context("blue"):
        Notification.objects.create(user=users()[0], title="blue")
        connection.set_schema("green")  # the transaction commits there
    connection.set_schema_to_public()
    for name, asked in (("blue", True), ("green", False)):
        with schema_context(name):
            assert RecountRequest.objects.exists() == asked
    call_command("flush_counters", verbosity=0)
    check("blue")


def test_commands_go_through_all_schemas(tenants: list[Client], capsys: Any) -> None:
    call_command("flush_counters", verbosity=0)
    for number, name in enumerate(NAMES, 1):
        with schema_context(name):
            Notification.objects.bulk_create(Notification(user=users()[0], title="new") for _ in range(number))
    with pytest.raises(CommandError, match=r"unread \(red\): The oldest change"):
        call_command("flush_counters", check=True, max_age=-1)
    call_command("flush_counters", schema="green")
    out = capsys.readouterr().out
    assert "unread: flushed 1 owner in 1 batch, net +2" in out
    call_command("flush_counters")
    out = capsys.readouterr().out
    assert "unread (blue): flushed 1 owner in 1 batch, net +1" in out
    assert "unread (green): nothing to flush." in out
    assert "unread (red): flushed 1 owner in 1 batch, net +3" in out
    call_command("recount_counters")
    out = capsys.readouterr().out
    assert all(f"unread ({name}): checked 1 owner, 0 wrong" in out for name in NAMES)
    assert connection.schema_name == "public"
    with pytest.raises(CommandError, match="'pink'"):
        call_command("flush_counters", schema="pink")


def test_each_tenant_is_compared_with_its_rows(tenants: list[Client]) -> None:
    call_command("flush_counters", verbosity=0)
    for name in NAMES:
        with schema_context(name):
            unheard(Notification.objects.bulk_create, [Notification(user=users()[0], title="unheard")])
    with entries(VERIFY_SECONDS=86400):
        for _ in NAMES:  # however busy the machine is, one of them has its turn
            pace.rests_until = 0
            call_command("flush_counters", verbosity=0)
    call_command("flush_counters", verbosity=0)
    for name in NAMES:
        with schema_context(name):
            assert look_at(unread).mismatched == 1
        check(name)


def test_a_schema_is_known_while_its_database_is_out_of_reach(tenants: list[Client], monkeypatch: Any) -> None:
    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "PORT", "1")
        with pytest.raises(CommandError, match="refused"):
            call_command("flush_counters", schema="blue")
    connection.close()
