"""Unread notifications by kind."""

from typing import Any

import pytest
from django.core.management import call_command

from notifications_counter.counters import unread_by_kind
from notifications_counter.models import Notification, UserKindNotificationsCount
from notifications_counter.models.fields import ExactCharField
from tests.composite_owners.support import TEXTS, assert_stored

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.keys]


def send(user: Any, kind: str, number: int = 1) -> list[Notification]:
    return Notification.objects.bulk_create(Notification(user=user, kind=kind, title="x") for _ in range(number))


@pytest.mark.usefixtures("with_kinds")
def test_texts_are_told_apart(alice, bob):
    right = {text: i + 1 for i, text in enumerate(TEXTS)}
    for text, number in right.items():
        send(alice, text, number)
    send(bob, "likes")
    assert unread_by_kind.breakdown(alice) == right
    assert Notification.objects.filter(kind="Likes").count() == right["Likes"]
    assert_stored(unread_by_kind)
    assert dict(UserKindNotificationsCount.objects.filter(user=alice).values_list("kind", "unread_count")) == right
    call_command("check", deploy=True, tags=["database"], databases=["default"], fail_level="ERROR")


def test_a_field_of_exact_texts_is_the_same_in_migrations():
    name, path, _, options = Notification._meta.get_field("kind").deconstruct()
    assert (name, path) == ("kind", "notifications_counter.models.fields.ExactCharField")
    assert options.keys() == {"verbose_name", "max_length", "blank"}
    assert isinstance(UserKindNotificationsCount._meta.get_field("kind"), ExactCharField)
    call_command("makemigrations", "notifications_counter", check=True, dry_run=True, verbosity=0)
