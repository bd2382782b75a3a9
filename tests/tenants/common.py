"""Tenants, whether the settings give each a schema or a database."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection

from notifications_counter.models import Notification
from tests.support import assert_reads, rows, stored

HAS_SCHEMAS = hasattr(settings, "TENANT_MODEL")
if HAS_SCHEMAS:
    from django_tenants.utils import schema_context as at

    from .models import Client

    NAMES = ("blue", "green", "red")
else:
    from .database_settings import working_for as at

    NAMES = ("default", "blue", "green")

User = get_user_model()


def drop(name: str) -> None:
    connection.set_schema_to_public()
    Client.objects.get(schema_name=name).delete(force_drop=True)


@pytest.fixture
def tenants() -> Iterator[None]:
    """Each with two users."""
    for name in NAMES:
        if HAS_SCHEMAS:
            Client.objects.create(schema_name=name, name=name)
        with at(name):
            for i in (1, 2):
                User.objects.create_user(username=f"user{i}")
    yield
    if HAS_SCHEMAS:
        for name in list(Client.objects.values_list("name", flat=True)):
            drop(name)


def users() -> list[Any]:
    return list(User.objects.order_by("username"))


def notify(number: int = 1) -> None:
    """New notifications for the first user of this tenant."""
    Notification.objects.bulk_create(Notification(user=users()[0], title="new") for _ in range(number))


def check(name: str) -> None:
    with at(name):
        assert_reads(*users())
        assert [stored(user) for user in users()] == [rows(user) for user in users()]
