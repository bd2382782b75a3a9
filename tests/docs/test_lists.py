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
from tests.docs.test_docs import FENCE, page, python_blocks, section
from tests.support import notify, sent

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]

PAGE = page("howto/lists.md")


def run(heading: str, *others: str) -> dict[str, Any]:
    """The names that the code below a heading defines."""
    names: dict[str, Any] = {}
    for code in [*others, *python_blocks(section(PAGE, heading))[:1]]:
        exec(code, names)
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
        names = run("A template", python_blocks(PAGE)[0])
    assert commands == ["MGET"]
    assert sorted(user.unread for user in names["users"]) == [0, 1, 2, 3]


def test_a_template(users, rf):
    (html,) = [code for language, code in FENCE.findall(section(PAGE, "A template")) if language == "html"]
    loaders = [("django.template.loaders.locmem.Loader", {"team.html": html})]
    engine = {"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": {"loaders": loaders}}
    team = run("A template", python_blocks(PAGE)[0])["team"]
    with override_settings(TEMPLATES=[engine]), sent() as commands:
        shown = team(rf.get("/")).content.decode()
    assert commands == ["MGET"]
    assert [f"{user.get_username()}: {number}" in shown for number, user in enumerate(users)] == [True] * 4


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
