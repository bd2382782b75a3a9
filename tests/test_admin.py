import re
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.templatetags.admin_list import results
from django.contrib.admin.utils import quote as admin_quote
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.formats import localize
from django.utils.http import urlencode

from notifications_counter.admin import base
from notifications_counter.counters import unread
from notifications_counter.models import Notification, UserNotificationsCount
from tests.support import create, messages, notify, redis_out_of_reach, unheard

pytestmark = pytest.mark.django_db(transaction=True)


def url(model, page="changelist", *args) -> str:
    return reverse(f"admin:notifications_counter_{model._meta.model_name}_{page}", args=args)


def act(client, model, action, rows, query=""):
    """Run an action of a list on rows, and return the page that follows."""
    data = {"action": action, "_selected_action": [row.pk for row in rows]}
    return client.post(url(model) + query, data, follow=True)


def table(response) -> list[list[str]]:
    """The cells of a list."""
    return [[unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in results(response.context["cl"])]


# ----------------------------------------------------------------------------------------------------- notifications
def test_no_list_reads_or_sorts_a_whole_table(admin_client, healed, monkeypatch):
    monkeypatch.setattr(base, "MAX_COUNTED_ROWS", 250)
    users = [get_user_model().objects.create(username=str(i)) for i in range(300)]
    Notification.objects.bulk_create(Notification(user=user, title="x", kind="news") for user in users)
    unread.flush()
    quote = connection.ops.quote_name
    lists = [(Notification, query) for query in ("?p=2", "?kind=news", "?read=no")]
    for model, query in (*lists, (UserNotificationsCount, "?p=2")):
        with CaptureQueriesContext(connection) as queries:
            response = admin_client.get(url(model) + query)
        assert response.context["cl"].result_count == 250
        page = response.content.decode()
        assert "All 250+ selected" in page
        assert re.search(r"\n250\+ \w", page)  # below the list
        here, key = quote(model._meta.db_table), quote(model._meta.pk.column)
        statements = [query["sql"] for query in queries if f"FROM {here}" in query["sql"]]
        assert len(statements) >= 2
        for sql in statements:
            assert "DISTINCT" not in sql
            assert "LIMIT" in sql or f"{key} IN" in sql, sql
            for order in re.findall(r"ORDER BY (.*?) LIMIT", sql):
                assert order.removesuffix(" DESC").removesuffix(" ASC") == f"{here}.{key}", sql


def test_the_number_of_a_long_list(settings):
    for settings.USE_THOUSAND_SEPARATOR, text in ((False, "10,000+"), (True, "≥10,000")):
        assert localize(base.AtLeast(10_000)) == text


def test_what_is_marked_changed_or_deleted_is_counted(admin_client, healed, make_user):
    user, other = make_user(username="ann"), make_user()
    mine, theirs = notify(user), notify(other, 1)
    response = act(admin_client, Notification, "mark_as_read", [*mine[:2], *theirs])
    assert messages(response) == ["3 notifications marked as read."]
    assert LogEntry.objects.latest("pk").object_repr == "3 notifications marked as read."
    assert unread.counts([user, other]) == {user.pk: 1, other.pk: 0}
    response = act(admin_client, Notification, "mark_as_unread", mine[:1], query="?q=ann&read=yes")
    assert messages(response) == ["1 notification marked as unread."]
    assert LogEntry.objects.latest("pk").object_repr == "1 notification marked as unread."
    fields = {"user": user.pk, "title": "hello", "data": "{}", "kind": "", "body": "", "url": ""}
    assert admin_client.post(url(Notification, "add"), fields).status_code == 302
    assert unread.count(user) == 3
    changed = fields | {"user": other.pk}
    assert admin_client.post(url(Notification, "change", mine[0].pk), changed).status_code == 302
    assert unread.counts([user, other]) == {user.pk: 2, other.pk: 1}
    data = {"action": "delete_selected", "_selected_action": [row.pk for row in mine], "post": "yes"}
    admin_client.post(url(Notification), data)
    assert unread.count(user) == 1


def test_marking_needs_permission(admin_client, make_user, allow):
    rows = notify(make_user(), 1)
    for permissions, left in ((["view"], 1), (["view", "change"], 0)):
        allow(*(f"{permission}_notification" for permission in permissions))
        act(admin_client, Notification, "mark_as_read", rows)
        assert Notification.objects.unread().count() == left


# ------------------------------------------------------------------------------------------------------------ counts
def counts(client, query="") -> dict[str, tuple[str, ...]]:
    """The current count and the stored one, by user."""
    return {row[1]: tuple(row[2:4]) for row in table(client.get(url(UserNotificationsCount) + query))}


def test_list_of_counts(admin_client, healed, make_user):
    ann, bob = make_user(username="ann"), make_user(username="bob")
    notify(ann, 2)
    notify(bob, 1)
    create(ann, 3)
    Notification.objects.filter(user=bob).mark_as_read()
    assert counts(admin_client) == {"ann": ("5", "2"), "bob": ("0", "1")}
    assert admin_client.get(url(UserNotificationsCount)).text.count("nc-odd") == 2
    unread.flush()
    assert "nc-odd" not in admin_client.get(url(UserNotificationsCount)).text
    assert list(counts(admin_client, "?unread=yes")) == ["ann"]
    create(bob)
    unread.flush()
    assert list(counts(admin_client, "?o=-3")) == ["ann", "bob"]
    assert list(counts(admin_client, "?o=3")) == ["bob", "ann"]
    Notification.objects.filter(user=bob).delete()
    unread.flush()
    Notification.objects.bulk_create(Notification(user=bob, title="x") for _ in range(1234))
    with redis_out_of_reach():
        assert counts(admin_client) == {"ann": ("5", "5"), "bob": ("1,234", "0")}


def test_search_for_counts_also_of_users_that_are_gone(admin_client, healed, make_user):
    ann, bob = make_user(username="ann"), make_user(username="bob")
    notify(bob)
    UserNotificationsCount.objects.create(pk=ann.pk)
    assert list(counts(admin_client, "?q=an")) == ["ann"]
    key = bob.pk
    bob.delete()
    assert list(counts(admin_client, "?" + urlencode({"q": key}))) == [str(key)]
    assert list(counts(admin_client, "?q=nobody")) == []


def test_a_count_is_read_only(admin_client, healed, alice):
    notify(alice)
    key = admin_quote(alice.pk)
    assert admin_client.post(url(UserNotificationsCount, "change", key), {"unread_count": 9}).status_code == 403
    assert admin_client.get(url(UserNotificationsCount, "add")).status_code == 403
    assert admin_client.get(url(UserNotificationsCount, "delete", key)).status_code == 403


def test_a_recount_of_selected_users_needs_its_permission(admin_client, healed, make_user, allow, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    user, other = make_user(), make_user()
    for each in (user, other):
        notify(each, 1)
    unheard(UserNotificationsCount.objects.update, unread_count=5)
    rows = UserNotificationsCount.objects.filter(pk=user.pk)
    recount = "Counter unread: 1 owner was compared with the rows, 1 wrong."
    for permission, told in (("flush_unread_counts", False), ("recount_unread_counts", True)):
        allow("view_usernotificationscount", permission)
        assert (recount in messages(act(admin_client, UserNotificationsCount, "recount", rows))) == told
    assert unread.counts([user, other]) == {user.pk: 1, other.pk: 1}
