"""The inbox as JSON: what it answers and changes, for whom, and what it costs. Its description: test_openapi.py."""

from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings
from django.test import Client, override_settings
from django.urls import include, path, reverse
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.inbox import api
from notifications_counter.models import Notification
from tests.support import assert_exact, notify, sent

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

CHANGES = ["api-mark-as-seen", "api-mark-as-read", "api-mark-as-unread", "api-delete"]
WITHOUT_CSRF = [name for name in settings.MIDDLEWARE if "Csrf" not in name]
LOGIN_EVERYWHERE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]


class Sales:
    def get_queryset(self):
        return super().get_queryset().filter(kind="sale")

    def as_json(self, notification):
        return {"title": notification.title}


class SalesInbox(Sales, api.InboxAPI):
    pass


class SalesDelete(Sales, api.DeleteAPI):
    pass


urlpatterns = [
    path("inbox/api/", SalesInbox.as_view(page_size=2)),
    path("inbox/api/delete/", SalesDelete.as_view()),
    path("inbox/", include("notifications_counter.inbox.urls")),
]
own_urls = override_settings(ROOT_URLCONF=__name__)


def url(name: str = "api-inbox", *args) -> str:
    return reverse(f"notifications:{name}", args=args)


def post(client: Client, name: str, body, **extra):
    return client.post(url(name), body, content_type="application/json", **extra)


def titles(response) -> list[str]:
    return [row["title"] for row in response.json()["notifications"]]


# ------------------------------------------------------------------------------------------------------------ list
@pytest.mark.keys
def test_the_list_and_one_of_it(client, alice, bob):
    (other,) = notify(bob, 1)
    *_, row = notify(alice, 3, read=1)
    listed = client.get(url()).json()
    assert [each["title"] for each in listed["notifications"]] == ["2", "1", "0"]
    assert listed["notifications"][0] == client.get(url("api-open", row.pk)).json()
    assert (listed["newer"], listed["older"]) == ("", "")
    assert unread.count(alice) == 2
    for pk in (other.pk, row.pk + 1000, "x", "-1", str(10**30), "9" * 5000):
        response = client.get(url("api-open", pk))
        assert (response.status_code, response.json()) == (404, {"detail": "There is no such notification."})


def test_filters(client, alice):
    for title, kind, read in [("a", "sale", None), ("b", "sale", timezone.now()), ("c", "", None)]:
        Notification.objects.create(user=alice, title=title, kind=kind, read_at=read)
    assert titles(client.get(url(), {"unread": "false"})) == ["b"]
    assert titles(client.get(url(), {"kind": "sale", "unread": "true"})) == ["a"]
    assert titles(client.get(url(), {"kind": ""})) == ["c", "b", "a"]


@pytest.mark.parametrize("use_tz", [True, False])
def test_since(client, alice, use_tz):
    with override_settings(USE_TZ=use_tz, TIME_ZONE="Asia/Shanghai"):
        middle = datetime(2026, 11, 22, 9, 30, 0, 123456, tzinfo=UTC)
        for title, minutes in [("a", -1), ("b", 0), ("c", 1)]:
            at = middle + timedelta(minutes=minutes)
            at = at if use_tz else timezone.make_naive(at)
            Notification.objects.bulk_create([Notification(user=alice, title=title, created_at=at)])
        for since in ("2026-11-22T09:30:00.123456Z", "2026-11-22T17:30:00.123456+08:00", "2026-11-22T17:30:00.123456"):
            found = client.get(url(), {"since": since})
            assert titles(found) == ["c", "b"]
            assert found.json()["notifications"][1]["created_at"] == "2026-11-22T09:30:00.123456Z"


def test_pages(client, alice):
    notify(alice, 5)
    page = client.get(url(), {"limit": 3}).json()
    older = client.get(url(), {"limit": 3, "before": page["older"]}).json()
    assert [row["title"] for row in page["notifications"] + older["notifications"]] == ["4", "3", "2", "1", "0"]
    assert (page["newer"], older["older"]) == ("", "")
    assert titles(client.get(url(), {"limit": 2, "after": older["newer"]})) == ["3", "2"]


def test_what_is_known_is_not_sent_again(client, alice):
    (row,) = notify(alice, 1)
    for address in (url(), url("api-open", row.pk), url("counts"), url("openapi")):
        response = client.get(address)
        again = client.get(address, headers={"If-None-Match": response["ETag"]})
        assert (again.status_code, again.content, again["ETag"]) == (304, b"", response["ETag"])
        assert again.get("Cache-Control") == response.get("Cache-Control")
    for address in (url(), url("api-open", row.pk), url("counts")):
        response = client.get(address)
        assert set(response["Cache-Control"].split(", ")) == {"private", "no-cache"}
        assert "Cookie" in response["Vary"]
        row.mark_as_unread() if row.is_read else row.mark_as_read()
        assert client.get(address, headers={"If-None-Match": response["ETag"]}).status_code == 200


# --------------------------------------------------------------------------------------------------------- changes
@pytest.mark.keys
def test_changes(client, alice, bob):
    notify(bob)
    ids = [row.pk for row in notify(alice, 5)]
    assert post(client, "api-mark-as-read", {"ids": ids[:3]}).json() == {"changed": 3, "unread": 2}
    assert post(client, "api-mark-as-read", {"ids": ids[:4]}).json() == {"changed": 1, "unread": 1}
    assert post(client, "api-mark-as-unread", {"ids": ids[:2]}).json() == {"changed": 2, "unread": 3}
    assert post(client, "api-delete", {"ids": [ids[0]]}).json() == {"changed": 1, "unread": 2}
    assert post(client, "api-delete", {"which": "read"}).json() == {"changed": 2, "unread": 2}
    assert post(client, "api-mark-as-read", {"which": "all"}).json() == {"changed": 2, "unread": 0}
    assert post(client, "api-mark-as-unread", {"which": "all"}).json() == {"changed": 2, "unread": 2}
    Notification.objects.create(user=alice, title="x", kind="sale")
    assert post(client, "api-mark-as-read", {"which": "all", "kind": "sale"}).json() == {"changed": 1, "unread": 2}
    assert post(client, "api-delete", {"which": "read", "kind": "sale"}).json() == {"changed": 1, "unread": 2}
    assert post(client, "api-delete", {"which": "all"}).json() == {"changed": 2, "unread": 0}
    assert unread.counts([alice, bob]) == {alice.pk: 0, bob.pk: 3}
    assert_exact(alice, bob)


@own_urls
def test_views_of_the_site(client, alice):
    notify(alice, 2)
    for title in "abc":
        Notification.objects.create(user=alice, title=title, kind="sale")
    assert client.get(url()).json()["notifications"] == [{"title": "c"}, {"title": "b"}]
    assert post(client, "api-delete", {"which": "all"}).json() == {"changed": 3, "unread": 2}
    assert Notification.objects.filter(kind="").count() == 2


# ---------------------------------------------------------------------------------------------------------- access


@pytest.mark.parametrize("middleware", [settings.MIDDLEWARE, WITHOUT_CSRF, LOGIN_EVERYWHERE])
def test_without_a_login(alice, middleware, django_assert_num_queries):
    (row,) = notify(alice, 1)
    nobody = Client(enforce_csrf_checks=True)
    with override_settings(MIDDLEWARE=middleware), django_assert_num_queries(0), sent() as commands:
        responses = [nobody.get(address) for address in (url(), url("api-open", row.pk), url("counts"))]
        responses += [post(nobody, change, {"which": "all"}) for change in CHANGES]
    for response in responses:
        assert (response.status_code, response.json()) == (401, {"detail": "Authentication required."})
        assert response["WWW-Authenticate"] == "Session"
        assert "private" in response["Cache-Control"]
    assert commands == []
    assert Notification.objects.unread().count() == 1


@pytest.mark.parametrize("middleware", [settings.MIDDLEWARE, WITHOUT_CSRF])
def test_changes_need_the_token_that_comes_with_the_list(alice, middleware):
    notify(alice, 1)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(alice)
    with override_settings(MIDDLEWARE=middleware):
        for headers in ({}, {"X-CSRFToken": "x" * 32}):
            for change in CHANGES:
                response = post(strict, change, {"which": "all"}, headers=headers)
                assert response.status_code == 403
                assert "X-CSRFTOKEN" in response.json()["detail"]
        strict.get(url())
        token = {"X-CSRFToken": strict.cookies["csrftoken"].value}
        foreign = {**token, "Origin": "https://shop.example"}
        assert post(strict, "api-mark-as-read", {"which": "all"}, headers=foreign).status_code == 403
        assert unread.count(alice) == 1
        assert post(strict, "api-mark-as-read", {"which": "all"}, headers=token).json()["changed"] == 1
