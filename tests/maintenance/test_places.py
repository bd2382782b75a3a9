"""Where a counter counts, and what each of these places is called."""

import pytest

from notifications_counter.counters import unread
from notifications_counter.maintenance.places import Place, PlaceFinder, local_counters

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ([Place("default")], ["unread"]),
        ([Place("default"), Place("archive")], ["unread (default)", "unread (archive)"]),
        ([Place("default", "acme"), Place("default", "globex")], ["unread (acme)", "unread (globex)"]),
        (
            [Place("default", "acme"), Place("default", "globex"), Place("other", "acme")],
            ["unread (default, acme)", "unread (globex)", "unread (other, acme)"],
        ),
    ],
)
def test_each_place_has_another_name(monkeypatch, found, names):
    monkeypatch.setattr(PlaceFinder, "places", lambda *_: found)
    assert local_counters([unread]) == [(name, unread, place) for name, place in zip(names, found, strict=True)]
