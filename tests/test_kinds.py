"""Unread notifications by kind."""

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from notifications_counter.counters import all_counters, unread, unread_by_kind  # noqa: F401 - skipif() reads it
from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification, UserKindNotificationsCount
from notifications_counter.models.fields import ExactCharField
from tests.composite_owners.support import TEXTS, assert_stored

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.keys]


def send(user: Any, kind: str, number: int = 1) -> list[Notification]:
    return Notification.objects.bulk_create(Notification(user=user, kind=kind, title="x") for _ in range(number))


def by_kind(user: Any) -> dict[str, int]:
    return unread_by_kind.breakdown(user)


# ---------------------------------------------------------------------------------------------------------- changes
@pytest.mark.usefixtures("with_kinds")
def test_texts_are_told_apart(alice, bob):
    right = {text: i + 1 for i, text in enumerate(TEXTS)}
    for text, number in right.items():
        send(alice, text, number)
    send(bob, "likes")
    assert by_kind(alice) == right
    assert Notification.objects.filter(kind="Likes").count() == right["Likes"]
    assert_stored(unread_by_kind)
    assert dict(UserKindNotificationsCount.objects.filter(user=alice).values_list("kind", "unread_count")) == right
    call_command("check", deploy=True, tags=["database"], databases=["default"], fail_level="ERROR")


@pytest.mark.usefixtures("with_kinds")
def test_changes(alice, bob):
    first, second = send(alice, "sale"), send(alice, "news", 3)
    mine = NotificationController(alice)
    assert mine.mark_all_as_seen() == 4
    assert by_kind(alice) == {"sale": 1, "news": 3}
    assert mine.mark_as_read(first[0].pk)
    assert by_kind(alice) == {"news": 3}
    first[0].mark_as_unread()
    assert by_kind(alice) == {"sale": 1, "news": 3}
    Notification.objects.filter(kind="news", user=alice).update(kind="sale")
    assert by_kind(alice) == {"sale": 4}
    Notification.objects.filter(pk=second[0].pk).update(user=bob, kind="")
    assert (by_kind(alice), by_kind(bob)) == ({"sale": 3}, {"": 1})
    with transaction.atomic():
        assert mine.mark_all_as_read() == 3
        assert by_kind(alice) == {}
        transaction.set_rollback(True)
    assert unread_by_kind.count((alice, "sale")) == 3
    assert mine.mark_all_as_read() == 3
    assert by_kind(alice) == {}
    assert_stored(unread_by_kind)


@pytest.mark.usefixtures("with_kinds")
@pytest.mark.skipif("unread.key_fields[0].get_internal_type() == 'CharField'", reason="Equal texts may differ.")
def test_a_kind_is_marked_as_read_by_one_statement(alice):
    """Equal texts of the column are the same text."""
    send(alice, "sale", 2)
    send(alice, "Sale")
    theirs = Notification.objects.for_user(alice).filter(kind="sale", seen_at=None)
    with CaptureQueriesContext(connection) as statements:
        assert theirs.mark_as_read() == 2
    assert len(statements) == 1
    assert by_kind(alice) == {"Sale": 1}
    assert_stored(unread_by_kind)


# ---------------------------------------------------------------------------------------------------------- recounts


def test_a_field_of_exact_texts_is_the_same_in_migrations():
    name, path, _, options = Notification._meta.get_field("kind").deconstruct()
    assert (name, path) == ("kind", "notifications_counter.models.fields.ExactCharField")
    assert options.keys() == {"verbose_name", "max_length", "blank"}
    assert isinstance(UserKindNotificationsCount._meta.get_field("kind"), ExactCharField)
    call_command("makemigrations", "notifications_counter", check=True, dry_run=True, verbosity=0)
