"""The inbox as JSON: what it answers and changes, and for whom. Its description: test_openapi.py."""

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import assert_exact, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]


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


def test_filters_and_pages(client, alice):
    for title, kind, read in [("a", "sale", None), ("b", "sale", timezone.now()), ("c", "", None)]:
        Notification.objects.create(user=alice, title=title, kind=kind, read_at=read)
    assert titles(client.get(url(), {"unread": "false"})) == ["b"]
    assert titles(client.get(url(), {"kind": "sale", "unread": "true"})) == ["a"]
    since = Notification.objects.get(title="b").created_at.astimezone(timezone.get_fixed_timezone(480))
    assert titles(client.get(url(), {"since": since.isoformat()})) == ["c", "b"]
    page = client.get(url(), {"limit": 2}).json()
    older = client.get(url(), {"limit": 2, "before": page["older"]})
    assert (titles(older), page["newer"], older.json()["older"]) == (["a"], "", "")
    assert titles(client.get(url(), {"limit": 2, "after": older.json()["newer"]})) == ["c", "b"]


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
    Notification.objects.create(user=alice, title="x", kind="sale")
    assert post(client, "api-mark-as-read", {"which": "all", "kind": "sale"}).json() == {"changed": 1, "unread": 2}
    assert post(client, "api-mark-as-read", {"which": "all"}).json() == {"changed": 2, "unread": 0}
    assert post(client, "api-delete", {"which": "all"}).json() == {"changed": 3, "unread": 0}
    assert unread.counts([alice, bob]) == {alice.pk: 0, bob.pk: 3}
    assert_exact(alice, bob, in_doubt=None)
