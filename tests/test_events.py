from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from notifications_counter import events
from notifications_counter.events import EventLog
from notifications_counter.testing import isolated_counters

pytestmark = [pytest.mark.django_db, pytest.mark.once]


class Size(int, Enum):
    """Its str() is a name."""

    SMALL = 7


def numbers(page: list[dict[str, Any]]) -> list[int]:
    return [event["n"] for event in page]


def nested(levels: int) -> Any:
    """Lists and dicts inside each other."""
    value: Any = 7
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.fixture
def log() -> EventLog:
    """2,500 events of three types, seven a second."""
    log = EventLog()
    log.record_events({"type": "abc"[n % 3], "timestamp": n // 7, "n": n} for n in range(2500))
    return log


def test_an_event_comes_back_as_the_same_dict_with_its_id() -> None:
    event = {"type": "登录 login:1", "timestamp": 1700000000.25, "none": None, "nested": {"a": [1, True, {"b": "ü\n"}]}}
    event_id = events.record_event(event)
    assert events.get_event(event_id) == event | {"id": event_id}
    assert events.latest() == events.oldest() == [event | {"id": event_id}]
    assert events.count_type("登录 login:1") == 1


def test_timestamps() -> None:
    before = datetime.now(UTC)
    events.record_event({"type": "a"})
    assert events.count_events(before - timedelta(seconds=5), before + timedelta(minutes=1)) == 1
    noon = datetime(2026, 3, 29, 12, tzinfo=timezone(timedelta(hours=2)))
    events.record_event({"type": "a", "timestamp": noon})
    assert events.oldest()[0]["timestamp"] == noon.timestamp()


@pytest.mark.parametrize(
    "bad",
    [
        {}, [], {"type": ""}, {"type": 7}, {"type": "a", "id": 1}, {"type": "a", 7: "seven"},
        {"type": "a", "timestamp": "yesterday"}, {"type": "a", "timestamp": datetime(2026, 1, 1)},
        {"type": "a", "object": object}, {"type": "a", "infinite": float("inf")}, {"type": "a", "text": "\ud800"},
        {"type": "a", "\ud800": 1}, {"type": "a", "nested": nested(101)},
        {"type": "a", "nested": [*"[" * 200, nested(100)]},
    ],
    ids=lambda bad: ascii(bad)[:50],
)  # fmt: skip
def test_a_bad_event_is_refused_and_none_of_its_batch_is_stored(bad: Any) -> None:
    with pytest.raises(ValueError, match="must be|gets its id|field|Field|pass"):
        events.record_events([*[{"type": "good"}] * 1000, bad])  # more than one call
    assert events.count_events() == 0


def test_an_event_that_is_nested_as_deep_as_it_may_be() -> None:
    event = {"type": "a", "timestamp": 5, "nested": nested(100), "flat": [[]] * 200}
    assert events.get_event(events.record_event(event)) == event | {"id": 1}


def test_values_that_something_else_has_written(log: EventLog, redis_client: Any) -> None:
    """Nobody has to look for them before the log can be read."""
    deep = b"[" * 100_000 + b"]" * 100_000
    for event_id, text in enumerate([deep, b"no JSON", b"\xff", b"9" * 5000], 1):
        redis_client.hset(f"{log.base}:event:{event_id}", "n", text)
    assert numbers(log.oldest(5)) == [deep.decode(), "no JSON", "\udcff", "9" * 5000, 4]
    assert log.trim_events(max_length=0) == 2500


def test_pages_pass_over_events_whose_fields_are_gone(log: EventLog, redis_client: Any) -> None:
    """Those of a test database expire one by one."""
    redis_client.delete(*(f"{log.base}:event:{id_}" for id_ in range(1, 1200)))
    assert numbers(log.oldest(2)) == [1199, 1200]
    assert numbers(log.latest(2500)) == list(range(2499, 1198, -1))


def test_trim(log: EventLog, redis_client: Any) -> None:
    last = log.latest(1)[0]
    assert log.trim_events(max_length=1200) == 1300
    assert log.trim_events(max_length=1200) == 0
    assert log.get_event(1) is None
    assert log.count_types() == {"a": 400, "b": 400, "c": 400}
    assert log.trim_events(max_age=10, now=357) == 1200 - 71
    assert log.trim_events(max_length=0) == 71
    assert log.count_events() == 0
    assert log.list_types() == []
    assert list(redis_client.scan_iter(f"{log.base}:event*".replace("{", "[{]"))) == []
    assert log.record_event({"type": "d"}) == last["id"] + 1  # an id is never used twice


def test_bad_arguments(log: EventLog) -> None:
    for call in (
        lambda: log.latest(0),
        lambda: log.oldest(after={"type": "a"}),
        lambda: log.oldest(after={"id": datetime(2026, 1, 1), "timestamp": 5}),
        lambda: log.count_events(datetime(2026, 1, 1)),
        lambda: EventLog("empty").count_types("yesterday"),
        lambda: log.trim_events(max_age=-1),
        lambda: log.trim_events(max_length=Size.SMALL),
        lambda: EventLog("a\nb"),
        lambda: EventLog("\ud800"),
    ):
        with pytest.raises(ValueError, match="must be|pass"):
            call()


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 3) | st.sampled_from([0.5, 1.5])), max_size=30)
BOUND = st.none() | st.integers(-4, 4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EVENTS, BOUND, BOUND, st.integers(1, 7), st.integers(0, 30))
def test_as_a_list(happened: list[tuple[str, float]], start: Any, end: Any, size: int, keep: int) -> None:
    with isolated_counters():
        ids = events.record_events({"type": kind, "timestamp": at} for kind, at in happened)
        model = sorted((at, id_, kind) for id_, (kind, at) in zip(ids, happened, strict=True))
        positions = events.latest(size)  # some are trimmed
        events.trim_events(max_length=keep)
        model = model[max(0, len(model) - keep) :]
        inside = [kind for at, _, kind in model if (start is None or at >= start) and (end is None or at < end)]
        assert events.count_events(start, end) == len(inside)
        expected = {kind: inside.count(kind) for kind in set(inside)}
        assert events.count_types(start, end) == expected
        for bound in (-1, 0, 1.5):
            got = [event["id"] for event in events.latest(size, before=bound)]
            assert got == [id_ for at, id_, _ in model[::-1] if at < bound][:size]
            got = [event["id"] for event in events.oldest(size, after=bound)]
            assert got == [id_ for at, id_, _ in model if at >= bound][:size]
        for event in positions:
            place = event["timestamp"], event["id"]
            got = [event["id"] for event in events.oldest(after=event)]
            assert got == [id_ for at, id_, _ in model if (at, id_) > place]
            got = [event["id"] for event in events.latest(before=event)]
            assert got == [id_ for at, id_, _ in model[::-1] if (at, id_) < place]
