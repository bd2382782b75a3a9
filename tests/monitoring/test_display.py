"""Times and lengths of time, as people read them."""

from datetime import UTC, datetime

import pytest

from notifications_counter.monitoring import display
from notifications_counter.monitoring.display import duration, moment

pytestmark = pytest.mark.once


def test_durations_have_few_digits():
    shown = [duration(seconds) for seconds in (0.05, 2.8, 59, 119, 120, 7199, 7200, 200_000)]
    assert shown == ["50 ms", "2 s", "59 s", "1 min", "2 min", "119 min", "2 h", "2 d"]


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (datetime(2026, 9, 5, 23, tzinfo=UTC), "13:05"),
        (datetime(2026, 9, 6, tzinfo=UTC), "Sep 5 13:05"),
        (datetime(2027, 1, 1, tzinfo=UTC), "Sept. 5, 2026 13:05"),
    ],
)
def test_a_moment_has_a_date_if_it_is_not_of_today(now, told, settings, monkeypatch):
    settings.TIME_ZONE = "UTC"
    monkeypatch.setattr(display.time, "time", now.timestamp)
    assert moment(datetime(2026, 9, 5, 13, 5, tzinfo=UTC).timestamp()) == told
