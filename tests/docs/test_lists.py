"""The recipes for lists show the count of each owner, and ask Redis once."""

import re
import sys
from types import ModuleType
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.test import override_settings
from django.urls import path, reverse

from notifications_counter.counters import unread
from tests.docs.test_docs import page, python_blocks, section
from tests.support import notify, sent

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]

PAGE = page("howto/lists.md")


def run(heading: str) -> dict[str, Any]:
    """The names that the first code below a heading defines."""
    names: dict[str, Any] = {}
    exec(python_blocks(section(PAGE, heading))[0], names)
    return names


@pytest.fixture
def users(healed, make_user) -> list[Any]:
    """Of whom the n-th has n unread notifications, which are cached."""
    users = [make_user() for _ in range(4)]
    for number, user in enumerate(users):
        if number:
            notify(user, number)
    unread.counts(users)
    return users


def test_a_list(users):
    with sent() as commands:
        names = run("Counts in lists")
    assert commands == ["MGET"]
    assert sorted(user.unread for user in names["users"]) == [0, 1, 2, 3]


def test_a_column_in_the_admin(users, admin_client, monkeypatch):
    urls = ModuleType("lists.urls")
    monkeypatch.setitem(sys.modules, urls.__name__, urls)
    admin.site.register(get_user_model())
    try:
        run("A column in the admin")
        urls.urlpatterns = [path("admin/", admin.site.urls)]
        with override_settings(ROOT_URLCONF=urls.__name__), sent() as commands:
            shown = admin_client.get(reverse(f"admin:{get_user_model()._meta.db_table}_changelist")).content.decode()
    finally:
        admin.site.unregister(get_user_model())
    assert commands.count("MGET") == 1
    assert sorted(re.findall(r'<td class="field-unread">(\d)</td>', shown)) == ["0", "0", "1", "2", "3"]


def test_a_leaderboard(users):
    leaders = run("A leaderboard")["leaders"]
    assert leaders(2) == [(users[3], 3), (users[2], 2)]
