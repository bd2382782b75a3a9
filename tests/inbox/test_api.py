"""The inbox as JSON: what it answers and changes, for whom, and what it costs. Its description: test_openapi.py."""

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.conf import settings
from django.db import connection
from django.http import HttpResponse
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import include, path, reverse
from django.utils import timezone

from notifications_counter.counters import unread, unseen
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


class DeletableNotification(api.NotificationAPI):
    def delete(self, request, pk):
        return HttpResponse(status=204)


urlpatterns = [
    path("inbox/api/", SalesInbox.as_view(page_size=2)),
    path("inbox/api/delete/", SalesDelete.as_view()),
    path("inbox/api/<pk>/", DeletableNotification.as_view()),
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
def test_the_list_is_the_users_own_newest_first(client, alice, bob):
    notify(bob)
    row = notify(alice, 3, read=1)[2]
    response = client.get(url())
    assert titles(response) == ["2", "1", "0"]
    assert response.json()["notifications"][0] == {
        "id": row.pk,
        "kind": "",
        "title": "2",
        "body": "",
        "url": "",
        "data": {},
        "created_at": row.created_at.isoformat().replace("+00:00", "Z"),
        "seen_at": None,
        "read_at": None,
    }
    assert response.json()["newer"] == response.json()["older"] == ""


def test_filters(client, alice):
    for title, kind, read in [("a", "sale", None), ("b", "sale", timezone.now()), ("c", "", None)]:
        Notification.objects.create(user=alice, title=title, kind=kind, read_at=read)
    assert titles(client.get(url(), {"unread": "true"})) == ["c", "a"]
    assert titles(client.get(url(), {"unread": "false"})) == ["b"]
    assert titles(client.get(url(), {"kind": "sale"})) == ["b", "a"]
    assert titles(client.get(url(), {"kind": "sale", "unread": "true"})) == ["a"]
    assert titles(client.get(url(), {"kind": ""})) == ["c", "b", "a"]


@pytest.mark.parametrize("use_tz", [True, False])
def test_since(client, alice, use_tz):
    with override_settings(USE_TZ=use_tz, TIME_ZONE="Asia/Shanghai"):
        middle = datetime(2026, 11, 22, 9, 30, 0, 123456, tzinfo=UTC)
        for title, minutes in [("a", -1), ("b", 0), ("c", 1)]:
            row = Notification.objects.create(user=alice, title=title)
            at = middle + timedelta(minutes=minutes)
            Notification.objects.filter(pk=row.pk).update(created_at=at if use_tz else timezone.make_naive(at))
        for since in ("2026-11-22T09:30:00.123456Z", "2026-11-22T17:30:00.123456+08:00", "2026-11-22T17:30:00.123456"):
            found = client.get(url(), {"since": since})
            assert titles(found) == ["c", "b"]
            assert found.json()["notifications"][1]["created_at"] == "2026-11-22T09:30:00.123456Z"


def test_too_many_parameters_are_refused(client):
    response = client.get(url("counts"), {"badge": ["x"] * 1001})
    assert (response.status_code, response.json()) == (400, {"detail": "There are too many parameters."})


@pytest.mark.skipif(connection.vendor == "postgresql", reason="It converts no times.")
@pytest.mark.parametrize("query", [{"before": "253402300799999999_1"}, {"since": "9999-12-31T23:59:59Z"}])
def test_times_that_the_database_does_not_have_are_refused(client, monkeypatch, query):
    monkeypatch.setattr(connection, "timezone", ZoneInfo("Asia/Tokyo"))
    assert client.get(url(), query).status_code == 400


def test_pages(client, alice):
    notify(alice, 5)
    page = client.get(url(), {"limit": 2}).json()
    assert page["newer"] == ""
    seen = [page]
    while page["older"]:
        page = client.get(url(), {"limit": 2, "before": page["older"]}).json()
        seen.append(page)
    assert [[row["title"] for row in page["notifications"]] for page in seen] == [["4", "3"], ["2", "1"], ["0"]]
    assert titles(client.get(url(), {"limit": 2, "after": page["newer"]})) == ["2", "1"]


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ({"unread": "yes"}, "true or false"),
        *(({"limit": limit}, "from 1 to 100") for limit in ("", "0", "101", "-1", "1.0", "x", "²", "٣", "9" * 5000)),
        *(({"since": since}, "%2B") for since in ("", "yesterday", "2026-13-01T00:00Z", "2026-11-22T09:30:00 01:00")),
        *(({"since": since}, "%2B") for since in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")),
        *(({way: cursor}, "another page") for way in ("before", "after") for cursor in ("x", "1_x", f"{10**30}_1")),
        ({"after": "1_1", "before": "x"}, "another page"),
    ],
)
def test_a_wrong_question_is_told_what_to_do(client, query, detail):
    response = client.get(url(), query)
    assert response.status_code == 400
    assert detail in response.json()["detail"]


def test_urls_are_safe_to_link_to(client, alice):
    row = Notification.objects.create(user=alice, title="x", url="javascript:alert(1)")
    assert client.get(url("api-open", row.pk)).json()["url"] == ""
    Notification.objects.filter(pk=row.pk).update(url="/a/")
    assert client.get(url("api-open", row.pk)).json()["url"] == "/a/"


# ------------------------------------------------------------------------------------------------------------- one
@pytest.mark.keys
def test_one(client, alice, bob):
    (row,), (other,) = notify(alice, 1), notify(bob, 1)
    assert client.get(url("api-open", row.pk)).json() == client.get(url()).json()["notifications"][0]
    assert unread.count(alice) == 1
    for pk in (other.pk, row.pk + 1000, "x", "-1", str(10**30), "9" * 5000):
        response = client.get(url("api-open", pk))
        assert (response.status_code, response.json()) == (404, {"detail": "There is no such notification."})


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
        row.mark_as_unread() if row.is_read else row.mark_as_read()
        assert client.get(address, headers={"If-None-Match": response["ETag"]}).status_code == 200


# --------------------------------------------------------------------------------------------------------- changes
@pytest.mark.keys
def test_changes(client, alice, bob):
    notify(bob)
    rows = notify(alice, 5)
    ids = [row.pk for row in rows]
    assert post(client, "api-mark-as-read", {"ids": ids[:3]}).json() == {"changed": 3, "unread": 2}
    assert post(client, "api-mark-as-read", {"ids": ids[:4]}).json() == {"changed": 1, "unread": 1}
    assert post(client, "api-mark-as-unread", {"ids": ids[:2]}).json() == {"changed": 2, "unread": 3}
    assert post(client, "api-delete", {"ids": [ids[0]]}).json() == {"changed": 1, "unread": 2}
    assert post(client, "api-delete", {"which": "read"}).json() == {"changed": 2, "unread": 2}
    assert post(client, "api-mark-as-read", {"which": "all"}).json() == {"changed": 2, "unread": 0}
    assert post(client, "api-mark-as-unread", {"which": "all"}).json() == {"changed": 2, "unread": 2}
    assert post(client, "api-delete", {"which": "all"}).json() == {"changed": 2, "unread": 0}
    assert unread.counts([alice, bob]) == {alice.pk: 0, bob.pk: 3}
    assert_exact(alice, bob)


@pytest.mark.usefixtures("with_unseen")
def test_seeing(client, alice, bob):
    ids = [row.pk for row in notify(alice, 5)]
    (other,) = notify(bob, 1)
    assert post(client, "api-mark-as-seen", {"ids": [*ids[:2], other.pk]}).json() == {
        "changed": 2, "unread": 5, "unseen": 3
    }  # fmt: skip
    assert post(client, "api-mark-as-read", {"ids": ids[:3]}).json() == {"changed": 3, "unread": 2, "unseen": 2}
    assert post(client, "api-mark-as-seen", {"which": "all"}).json() == {"changed": 2, "unread": 2, "unseen": 0}
    assert client.get(reverse("notifications:counts")).json() == {"unread": 2, "unseen": 0}
    for row in client.get(url()).json()["notifications"]:
        assert row["seen_at"] is not None
    for counter in (unread, unseen):
        assert_exact(alice, bob, counter=counter, in_doubt=None)


@pytest.mark.usefixtures("with_kinds")
def test_counts_by_kind(client, alice):
    notify(alice, 2)
    ids = [Notification.objects.create(user=alice, title="x", kind=kind).pk for kind in ("sale", "news", "sale")]
    right = {"unread": 5, "unseen": 5, "unread_by_kind": {"": 2, "news": 1, "sale": 2}}
    assert client.get(reverse("notifications:counts")).json() == right
    by_kind = {"": 2, "sale": 1}
    assert post(client, "api-mark-as-read", {"ids": ids[:2]}).json() == {
        "changed": 2, "unread": 3, "unseen": 3, "unread_by_kind": by_kind
    }  # fmt: skip
    unchanged = client.get(reverse("notifications:counts"))
    assert client.get(reverse("notifications:counts"), headers={"If-None-Match": unchanged["ETag"]}).status_code == 304


def test_changes_of_one_kind(client, alice):
    Notification.objects.create(user=alice, title="x", kind="sale")
    notify(alice, 2)
    assert post(client, "api-mark-as-read", {"which": "all", "kind": "sale"}).json() == {"changed": 1, "unread": 2}
    assert post(client, "api-delete", {"which": "read", "kind": "sale"}).json() == {"changed": 1, "unread": 2}
    assert post(client, "api-mark-as-read", {"which": "all", "kind": ""}).json() == {"changed": 2, "unread": 0}


@pytest.mark.keys
def test_what_others_have_is_left_out(client, alice, bob):
    ids = [row.pk for row in notify(bob, 2, read=1)]
    before = list(Notification.objects.for_user(bob).values())
    for change in CHANGES:
        for body in ({"ids": ids}, {"which": "all"}, {"which": "read"}):
            assert post(client, change, body).json() == {"changed": 0, "unread": 0}
    assert list(Notification.objects.for_user(bob).values()) == before
    assert_exact(bob)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        "all",
        {"ids": "all"},
        {"ids": 1},
        {"ids": ["1"]},
        {"ids": [1.5]},
        {"ids": [True]},
        {"ids": [None]},
        {"ids": [[1]]},
        {"ids": [float("nan")]},
        {"ids": [float("inf")]},
        {"ids": [1] * 1001},
        {"ids": [1], "which": "all"},
        {"ids": [1], "kind": "sale"},
        {"which": "none"},
        {"which": ["all"]},
        {"which": "all", "knd": "sale"},
        {"which": "all", "kind": None},
        {"which": "all", "kind": "\0"},
        {"which": "all", "kind": "\ud800"},
        {"which": "all", "kind": "x" * 65},
    ],
    ids=lambda body: json.dumps(body)[:40],
)
def test_a_body_that_names_nothing_changes_nothing(client, alice, body):
    notify(alice, 2, read=1)
    for change in CHANGES:
        response = post(client, change, json.dumps(body))
        assert response.status_code == 400
        assert "up to 1000 whole numbers" in response.json()["detail"]
    assert Notification.objects.read().count() == Notification.objects.unread().count() == 1


@pytest.mark.parametrize(
    "body", [b" ", b"{", b"\xff", b"[" * 100_000, b'{"ids": [' + b"9" * 5000 + b"]}"], ids=range(5)
)
def test_a_body_that_is_not_json(client, body):
    response = post(client, "api-delete", body)
    assert (response.status_code, response.json()) == (400, {"detail": "The body is not JSON."})


def test_ids_that_no_row_can_have_are_left_out(client, alice):
    (row,) = notify(alice, 1)
    ids = [0, -1, 2**63, 10**30, -(10**30), 1e300, float(row.pk)]
    assert post(client, "api-mark-as-read", {"ids": ids}).json() == {"changed": 1, "unread": 0}


def test_a_thousand_at_once(client, alice):
    Notification.objects.bulk_create(Notification(user=alice, title="x") for _ in range(1000))
    ids = list(Notification.objects.values_list("pk", flat=True))
    assert post(client, "api-mark-as-read", {"ids": ids}).json() == {"changed": 1000, "unread": 0}
    assert post(client, "api-delete", {"ids": ids}).json() == {"changed": 1000, "unread": 0}


def test_a_body_that_is_too_large(client, alice):
    notify(alice, 1)
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=20):
        response = post(client, "api-delete", {"ids": list(range(20))})
    assert response.status_code == 413
    assert "fewer ids" in response.json()["detail"]


@own_urls
def test_views_of_the_site(client, alice):
    notify(alice, 2)
    for title in "abc":
        Notification.objects.create(user=alice, title=title, kind="sale")
    assert client.get(url()).json()["notifications"] == [{"title": "c"}, {"title": "b"}]
    assert post(client, "api-delete", {"which": "all"}).json() == {"changed": 3, "unread": 2}
    assert Notification.objects.filter(kind="").count() == 2


# ---------------------------------------------------------------------------------------------------------- access
@own_urls
def test_methods_of_the_site_need_a_token_too(alice):
    (row,) = notify(alice, 1)
    for strict, status in [(True, 403), (False, 204)]:
        client = Client(enforce_csrf_checks=strict)
        client.force_login(alice)
        assert client.delete(url("api-open", row.pk)).status_code == status


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


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_changes_are_json(client, alice, kind):
    """A form of another site can send nothing else."""
    notify(alice, 1)
    response = client.post(url("api-delete"), '{"which": "all"}', content_type=kind)
    assert response.status_code == 415
    assert "application/json" in response.json()["detail"]
    assert Notification.objects.count() == 1


def test_other_methods(client, alice):
    (row,) = notify(alice, 1)
    for address, allowed in [
        (url(), "GET, HEAD, OPTIONS"),
        (url("api-open", row.pk), "GET, HEAD, OPTIONS"),
        (url("counts"), "GET, HEAD, OPTIONS"),
        *((url(change), "POST, OPTIONS") for change in CHANGES),
    ]:
        for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"} - set(allowed.split(", ")):
            response = client.generic(method, address)
            assert (response.status_code, response["Allow"]) == (405, allowed)
            assert allowed in response.json()["detail"]
        assert client.options(address)["Allow"] == allowed
    assert client.head(url()).content == b""


# ------------------------------------------------------------------------------------------------------------ cost
def test_reading_costs_one_query_and_no_round_trip(client, alice, django_assert_num_queries):
    row = notify(alice, 30)[0]
    cursor = client.get(url()).json()["older"]
    for address in (url(), url() + f"?unread=true&before={cursor}", url("api-open", row.pk)):
        with django_assert_num_queries(3), sent() as commands:  # session, user, notifications
            assert client.get(address).status_code == 200
        assert commands == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_costs_what_it_costs_without_a_request_and_a_read(client, alice, change, django_assert_num_queries):
    """Two queries, of the session and the user, and one round trip, for the number that is unread then."""
    ids = [row.pk for row in notify(alice, 4, read=2)]
    unread.count(alice)
    mine = Notification.objects.for_user(alice).filter(pk__in=ids[1:3])
    with sent() as expected, CaptureQueriesContext(connection) as queries:
        getattr(mine, change.removeprefix("api-").replace("-", "_"))()
    again = notify(alice, 4, read=2)
    unread.count(alice)
    with django_assert_num_queries(len(queries) + 2), sent() as commands:
        assert post(client, change, {"ids": [again[0].pk, again[-1].pk]}).status_code == 200
    assert commands == [*expected, "MGET"]
