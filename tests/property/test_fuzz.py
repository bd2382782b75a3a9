"""Whatever comes from outside: it is taken, or refused, and touches nobody else's rows or count."""

from typing import Any

import pytest
from django.db import DatabaseError, transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification
from tests.support import assert_reads, notify, rows

pytestmark = pytest.mark.django_db(transaction=True)

FEW = settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))

texts = st.text() | st.sampled_from(["\0", "\ud800", "' OR 1=1 --", "{nc:unread:0}", "*", "\r\nFLUSHALL"])
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | texts
oddities = scalars | st.decimals() | st.binary() | st.uuids() | st.lists(st.integers(), max_size=2) | st.just(object())
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.fixture
def two(make_user) -> tuple[Any, Any, list[Any]]:
    alice, bob = make_user(), make_user()
    notify(alice)
    return alice, bob, [row.pk for row in notify(bob)]


@FEW
@given(ids=st.lists(oddities, max_size=4), take_others=st.booleans(), as_text=st.booleans())
@example([10**30], False, False)
def test_ids_of_notifications(healed, two, ids, take_others, as_text):
    """Nothing but the user's own rows, whatever else is named."""
    alice, bob, others = two
    if take_others:
        ids = ids + [str(pk) if as_text else pk for pk in others]
    before, controller = rows(alice), NotificationController(alice)
    changed = controller.mark_all_as_read(ids)
    assert 0 <= changed <= len(ids)
    assert not any(map(controller.mark_as_read, ids))
    assert (rows(alice), rows(bob)) == (before - changed, len(others))
    assert_reads(alice, bob)


@FEW
@given(title=texts, kind=texts, body=texts, url=texts, data=json, size=st.sampled_from([1, 1, 1, 100_000]))
@example("\0", "", "", "", {}, 1)
@example("", "", "", "", {"a": "\0"}, 1)
def test_contents_of_notifications(healed, two, title, kind, body, url, data, size):
    """A row is written as a whole, or not at all, and the count agrees."""
    alice, bob, _ = two
    try:
        with transaction.atomic():
            row = Notification.objects.create(
                user=alice, title=title[:255], kind=kind[:64], body=body * size, url=url[:2000], data=data
            )
    except (DatabaseError, ValueError):  # what the database cannot hold, such as NUL
        row = None
    assert_reads(alice, bob)
    if row is not None:
        Notification.objects.get(pk=row.pk).delete()


def leads_nowhere_else(url: str) -> bool:
    """As browsers read it: without the spaces around it and the line breaks within, with a backslash as a slash."""
    read = url.strip("".join(map(chr, range(33)))).translate(dict.fromkeys(map(ord, "\t\r\n"))).replace("\\", "/")
    scheme, colon, _ = read.partition(":")
    if colon and scheme.lower() in ("http", "https"):
        return read.lower().startswith((f"{scheme.lower()}://",))
    return not read.startswith("//") and not (colon and scheme.isascii() and scheme[:1].isalpha() and scheme.isalnum())


words_of_links = ["javascript:", "JaVa", "script:", "data:", "http:", "https://", "//", "/", "\\", "\t", "\n", "\x01"]
words_of_links += ["\u3000", " ", "example.com", "@", ":", "?", "#", "alert(1)", "[", "]", "%0a", "\uff4a"]


@pytest.mark.once
@settings(FEW, max_examples=500)
@given(url=st.lists(st.sampled_from(words_of_links), max_size=8).map("".join) | st.text())
def test_links(url):
    assert leads_nowhere_else(Notification(url=url).safe_url)
