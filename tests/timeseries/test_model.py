"""Counters against a plain dict."""

from collections import defaultdict
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from notifications_counter.timeseries import TimeSeries

from .support import LONG_AGO, MONTH, redis_clock

pytestmark = [pytest.mark.django_db, pytest.mark.once]

SAMPLES = 10
numbers = count()


class Model:
    """What the documentation says."""

    def __init__(self, precisions: list[int]):
        self.slices = {precision: defaultdict(int) for precision in precisions}

    def update(self, amount: int, now: int) -> None:
        for precision, slices in self.slices.items():
            slices[now // precision * precision] += amount

    def clean(self, now: int) -> None:
        for precision, slices in self.slices.items():
            for start in [start for start in slices if start <= now - SAMPLES * precision]:
                del slices[start]

    def read(self, precision: int, clock: int, start: int | None, end: int | None, fill: bool) -> list[tuple[int, int]]:
        slices, window = self.slices[precision], SAMPLES * precision
        if slices and not any(clock - window < s <= clock for s in slices):
            clock = max(slices)
        shown = {s: n for s, n in slices.items() if s > clock - window}
        low = 0 if start is None else start
        high = 10**11 if end is None else end
        if fill and (shown or (start is not None and end is not None)):
            since = min(shown) if start is None else start
            until = max(shown) if end is None else end - 1
            for s in range(clock // precision * precision - 2 * window, clock + window, precision):
                if s > clock - window and since <= s <= until:
                    shown.setdefault(s, 0)
        return sorted((s, n) for s, n in shown.items() if low <= s < high)


def runs(times):
    update = st.tuples(st.just("update"), st.integers(-3, 5).filter(bool), times)
    clean = st.tuples(st.just("clean"), times)
    return st.lists(st.one_of(update, update, update, clean), max_size=40)


def check(precisions: list[int], actions: list, start: int | None, end: int | None, fill: bool) -> None:
    series = TimeSeries(precisions=precisions, samples=SAMPLES, name=f"count:{next(numbers)}")
    model = Model(precisions)
    for kind, *arguments in actions:
        if kind == "update":
            series.update_counter("a", *arguments)
            model.update(*arguments)
        else:
            series.clean_counters(now=arguments[0])
            model.clean(*arguments)
        clock = redis_clock()
        for precision in precisions:
            assert series.get_counter("a", precision) == model.read(precision, clock, None, None, False)
            assert (series.list_counters(precision=precision) == ["a"]) == bool(model.slices[precision])
    for precision in precisions:
        asked = series.get_counter("a", precision, start, end, fill)
        assert asked == model.read(precision, redis_clock(), start, end, fill)


CLOCKS = {
    "its own": ([7, 20], lambda: LONG_AGO, st.integers(0, 500)),
    "the server's": ([MONTH], redis_clock, st.integers(-14 * MONTH, 0)),
}


@pytest.mark.parametrize("clock", CLOCKS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.data())
def test_counters_of_any_clock(clock, data):
    precisions, now, since = CLOCKS[clock]
    zero = now()
    times = since.map(lambda seconds: zero + seconds)
    check(precisions, *data.draw(st.tuples(runs(times), st.none() | times, st.none() | times, st.booleans())))
