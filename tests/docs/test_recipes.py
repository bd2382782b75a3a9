"""The recipes of the pages about lists, the inbox and REST frameworks do what they are for, and no more."""

import re
import sys
from types import ModuleType
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.test import override_settings
from django.urls import path, reverse
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.inbox import urls
from notifications_counter.models import Notification
from tests.docs.test_docs import page, python_blocks, section
from tests.support import notify, sent

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

LISTS = page("howto/lists.md")


@pytest.fixture
def module(monkeypatch):
    """A function that makes a module of code, which others can import."""

    def module(name: str, code: str = "") -> ModuleType:
        made = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        exec(compile(code, name, "exec"), vars(made))
        return made

    return module


# ----------------------------------------------------------------------------------------------------------- lists
@pytest.fixture
def users(make_user) -> list[Any]:
    """Of whom the n-th has n unread notifications, which are cached."""
    users = [make_user() for _ in range(4)]
    for number, user in enumerate(users):
        notify(user, number)
    unread.counts(users)
    return users


def test_a_list_and_a_leaderboard(users):
    names: dict[str, Any] = {}
    exec(python_blocks(LISTS)[0], names)
    assert sorted(user.unread for user in names["users"]) == [0, 1, 2, 3]
    exec(python_blocks(section(LISTS, "A leaderboard"))[0], names)
    assert names["leaders"](2) == [(users[3], 3), (users[2], 2)]


def test_a_column_in_the_admin(users, admin_client, module):
    urls = module("lists.urls")
    admin.site.register(get_user_model())
    try:
        exec(python_blocks(section(LISTS, "A column in the admin"))[0], {})
        urls.urlpatterns = [path("admin/", admin.site.urls)]
        with override_settings(ROOT_URLCONF=urls.__name__), sent() as commands:
            shown = admin_client.get(reverse(f"admin:{get_user_model()._meta.db_table}_changelist")).content.decode()
    finally:
        admin.site.unregister(get_user_model())
    assert commands.count("MGET") == 1
    assert sorted(re.findall(r'<td class="field-unread">(\d)</td>', shown)) == ["0", "0", "1", "2", "3"]


# ----------------------------------------------------------------------------------------------------------- inbox
OF_SALES = """
from django.urls import include, path
from notifications_counter.inbox import urls

class Sales:
    def get_queryset(self):
        return super().get_queryset().filter(kind="sale")

views = [(url.pattern, getattr(url.callback, "view_class", None)) for url in urls.urlpatterns]
urlpatterns = [
    path(f"notifications/{pattern}", type("OfSales", (Sales, view), {}).as_view()) for pattern, view in views if view
]
urlpatterns += [path("notifications/", include(urls))]
"""


def test_an_inbox_of_some_notifications_leaves_the_others_alone(client, alice, module):
    """Whichever URL is asked."""
    site = module("urls_of_sales", OF_SALES)
    for read_at in (None, timezone.now()):
        Notification.objects.create(user=alice, title="secret", kind="private", read_at=read_at)
    others = list(Notification.objects.order_by("pk").values())
    with override_settings(ROOT_URLCONF=site.__name__):
        for name in {pattern.name for pattern in urls.urlpatterns} - {"counts", "stream", "openapi"}:
            url = reverse(f"notifications:{name}", args=[others[0]["id"]] if name in ("open", "api-open") else [])
            assert b"secret" not in client.get(url).content
            for which in ("all", "read"):
                client.post(url, {"which": which})
                client.post(url, {"which": which}, content_type="application/json")
        assert list(Notification.objects.order_by("pk").values()) == others
        Notification.objects.create(user=alice, title="for all to see", kind="sale")
        assert b"for all to see" in client.get(reverse("notifications:inbox")).content
