"""The page about the keys in Redis shows one of each kind of a counter, and no others."""

import re

import pytest

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.docs.test_docs import page
from tests.support import announce, buffer, entries, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

PATTERNS = {":[a-z2-7]{13}(?=:)": ":<database>", "(?<=>):[0-9a-f]{8}:.*": ":<generation>:<owner>"}


def kind(key: str) -> str:
    """What keys of a kind have in common."""
    for pattern, what in PATTERNS.items():
        key = re.sub(pattern, what, key)
    return key


def test_the_page_shows_a_key_of_each_kind(use, server, other, alice):
    use(server.url)
    with entries(KEY_PREFIX="nc"):
        notify(alice)
        unread.count(alice)
        buffer().doubt(["a batch"])
        buffer().cut(buffer().status().mark, "", "its id")
        Notification.objects.create(user=alice, title="x")
        announce(buffer(), "an intent", [str(alice.pk)])
        buffer().listen(60)
        [total] = other.scan_iter(match=buffer().key("*:*"))
        assert len(total.removesuffix(str(alice.pk))) <= 36  # for each owner
        shown = dict(re.findall(r"^\| `(\{.+?)` \| (\w+) \|", page("reference/redis-keys.md"), re.MULTILINE))
        found = {key: other.type(key) for key in other.scan_iter() if "history" not in key and "unread:" not in key}
        assert {kind(key): type_ for key, type_ in found.items()} == {kind(key): type_ for key, type_ in shown.items()}
