from collections.abc import Callable
from typing import Any

import pytest

from notifications_counter.counters import unread
from notifications_counter.maintenance.history import history
from notifications_counter.models import Notification

pytestmark = pytest.mark.django_db(transaction=True)


def recorded() -> list[tuple[str, dict[str, Any]]]:
    return [(event["type"], event) for event in history.oldest()]


def test_recoveries_and_recounts_are_recorded(make_user: Callable[..., Any]) -> None:
    user = make_user()
    unread.heal()
    Notification.objects.create(user=user, title="Hello")
    unread.flush()  # only the log and the metrics tell of it
    unread.recount([user])
    unread.recount([user], dry_run=True)
    types, events = zip(*recorded(), strict=True)
    assert types == ("recovery", "recovered", "recount")
    assert all(event["counter"] == "unread" for event in events)
    assert (events[2]["checked"], events[2]["corrected"]) == (1, 0)


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch, make_user: Callable[..., Any]) -> None:
    monkeypatch.setattr("notifications_counter.maintenance.history.LENGTH", 3)
    history.record_events([{"type": "filler"}] * 5)
    unread.heal()
    assert [type_ for type_, _ in recorded()] == ["filler", "recovery", "recovered"]
