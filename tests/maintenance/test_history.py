from collections.abc import Callable
from typing import Any

import pytest

from notifications_counter.counters import unread
from notifications_counter.maintenance.history import history
from notifications_counter.models import Notification
from notifications_counter.testing import isolated_counters

pytestmark = pytest.mark.django_db(transaction=True)


def recorded() -> list[tuple[str, dict[str, Any]]]:
    return [(event["type"], event) for event in history.oldest()]


def test_recovery_flush_and_recount_are_recorded(make_user: Callable[..., Any]) -> None:
    user = make_user()
    unread.heal()
    Notification.objects.create(user=user, title="Hello")
    unread.flush()
    unread.flush()  # nothing to flush is no event
    unread.recount([user])
    unread.recount([user], dry_run=True)
    types, events = zip(*recorded(), strict=True)
    assert types == ("recovery", "recovered", "flush", "recount")
    assert all(event["counter"] == "unread" for event in events)
    assert (events[2]["users"], events[2]["net"], events[2]["batches"]) == (1, 1, 1)
    assert (events[3]["checked"], events[3]["corrected"]) == (1, 0)


def test_nothing_is_recorded_with_record_events_off(make_user: Callable[..., Any]) -> None:
    with isolated_counters(RECORD_EVENTS=False):
        unread.heal()
        Notification.objects.create(user=make_user(), title="Hello")
        unread.flush()
        assert recorded() == []


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch, make_user: Callable[..., Any]) -> None:
    monkeypatch.setattr("notifications_counter.maintenance.history.LENGTH", 3)
    history.record_events([{"type": "filler"}] * 5)
    unread.heal()
    assert [type_ for type_, _ in recorded()] == ["filler", "recovery", "recovered"]
