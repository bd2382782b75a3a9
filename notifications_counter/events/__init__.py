"""An event log in Redis: events by time and by type, and counts over a range.

An event is a dict with at least a ``type``. Its ``timestamp`` defaults to now. It is returned as the same dict, with
its ``id``. Ranges include ``start`` and exclude ``end``. Times are seconds since the epoch or aware datetimes. Every
function raises BufferUnavailable if Redis is unreachable or the database has not been migrated.

    record_event({"type": "login", "user": 7})
    count_types(start=nine, end=ten)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import index
from typing import Any, TypeGuard

from asgiref.sync import sync_to_async

from ..conf import is_integer, is_seconds
from ..declaration.primary_keys import plain
from ..recipes import Recipe, Time, When, seconds
from ..redis.calls import MAX_ARGUMENTS, Argument, Scripts, chunked, command, in_groups
from ..redis.replies import UNREADABLE, as_pairs, as_text

SCRIPTS = Scripts(__package__)

Event = dict[str, Any]

MAX_DEPTH = 100
"""The most lists and dicts inside each other in a field. Python reads many more only if its stack is still short."""

EVENTS_PER_CALL = 1000
"""The most events that one script call reads or removes, or types that it counts, so that it never blocks Redis for
long."""


class EventLog(Recipe):
    """A log; see ``Recipe``."""

    def __init__(self, name: str = "events", alias: str | None = None, shared: bool = False):
        super().__init__(name, alias, shared)

    def _key(self, name: str) -> str:
        return f"{self.base}:{name}"

    def _run(self, name: str, *args: Argument) -> Any:
        """Run a script and return its reply. One key is enough: it builds the others from this."""
        return self.client.ask(SCRIPTS.call(name, [self._key("events")], *args))[0]

    # ----------------------------------------------------------------- writes
    def record_event(self, event: Mapping[str, Any]) -> int:
        """Store an event. Returns its id, which is never used twice."""
        return self.record_events([event])[0]

    def record_events(self, events: Iterable[Mapping[str, Any]]) -> list[int]:
        """Store events, a few hundred in each round trip, and return their ids. Raises ValueError before anything is
        stored if one is invalid."""
        encoded = [_encode(event) for event in events]
        ids: list[int] = []
        for some in in_groups(encoded, [len(event) for event in encoded], MAX_ARGUMENTS - 100):
            ids += self._run("record_events", *chain.from_iterable(some))
        return ids

    def trim_events(self, max_age: float | None = None, max_length: int | None = None, now: When = None) -> int:
        """Remove events older than ``max_age`` seconds, and the oldest beyond ``max_length``. Returns how many were
        removed. ``now`` defaults to the time on the Redis server, as the timestamp of an event does."""
        if max_age is not None and not is_seconds(max_age):
            raise ValueError(f"max_age must be a non-negative number of seconds, not {max_age!r}.")
        if max_length is not None and not (is_integer(max_length) and max_length >= 0):
            raise ValueError(f"max_length must be a non-negative number of events, not {max_length!r}.")
        age = "" if max_age is None else json.dumps(max_age)
        length = "" if max_length is None else str(max_length)
        present = "" if now is None else _score(now)
        removed = 0
        while True:
            count = self._run("trim_events", age, length, present, str(EVENTS_PER_CALL))
            removed += count
            if count < EVENTS_PER_CALL:
                return removed

    # ------------------------------------------------------------------ reads
    def get_event(self, event_id: int) -> Event | None:
        """Return the event with this id, or None if it does not exist."""
        if not is_integer(event_id):
            raise ValueError(f"The id of an event is an integer, not {event_id!r}.")
        return _decode(event_id, *self.client.ask(command("HGETALL", self._key(f"event:{event_id}"))))

    def latest(self, limit: int = 100, type: str | None = None, before: Time | Event | None = None) -> list[Event]:
        """Return the newest events, newest first: all, or those before a time or an event of the log. The next page is
        before the last event of this one."""
        return self._page("before", before, limit, type)

    def oldest(self, limit: int = 100, type: str | None = None, after: Time | Event | None = None) -> list[Event]:
        """Return the oldest events, oldest first: all, or those from a time on, or after an event of the log. The next
        page is after the last event of this one."""
        return self._page("after", after, limit, type)

    def count_events(self, start: When = None, end: When = None) -> int:
        """Return the number of events from ``start`` to ``end``."""
        return self._counts(["events"], start, end)[0]

    def count_type(self, type: str, start: When = None, end: When = None) -> int:
        """Return the number of these events that have a type."""
        return self._counts([f"events:{_type(type)}"], start, end)[0]

    def list_types(self) -> list[str]:
        """Return the types of the events in the log, sorted."""
        return sorted(map(as_text, *self.client.ask(command("SMEMBERS", self._key("types")))))

    def count_types(self, start: When = None, end: When = None) -> dict[str, int]:
        """Return ``{type: n}`` for the events from ``start`` to ``end``, without types that have none, in two round
        trips, for the types and for their counts."""
        kinds = self.list_types()
        counts = self._counts([f"events:{kind}" for kind in kinds], start, end)
        return {kind: n for kind, n in zip(kinds, counts, strict=True) if n}

    def _counts(self, names: Sequence[str], start: When, end: When) -> list[int]:
        range_ = _range(start, end)
        calls = [command("ZCOUNT", self._key(name), *range_) for name in names]
        return [n for some in chunked(calls, EVENTS_PER_CALL) for n in self.client.ask(*some)]

    def _page(self, direction: str, position: Time | Event | None, limit: int, type: str | None) -> list[Event]:
        if not (is_integer(limit) and limit > 0):
            raise ValueError(f"limit must be an integer of at least 1, not {limit!r}.")
        score = member = ""
        if isinstance(position, Mapping):
            try:
                score, member = _score(position["timestamp"]), f"{index(position['id']):016d}"
            except (KeyError, ValueError, TypeError):
                raise ValueError("A position must be a time, or an event that this log has returned.") from None
        elif position is not None:
            score = _score(position)
        events = "events" if type is None else f"events:{_type(type)}"
        page: list[Event] = []
        while len(page) < limit:
            size = min(EVENTS_PER_CALL, limit - len(page))
            found = self._run("page_events", events, direction, str(size), score, member)
            page += [event for id_, _, fields in found if (event := _decode(int(id_), fields))]
            if len(found) < size:
                break
            member, score, _ = found[-1]
        return page

    # ------------------------------------------------------------------ async
    arecord_event = sync_to_async(record_event)
    arecord_events = sync_to_async(record_events)


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a string that is not empty and has a UTF-8: half of a surrogate pair has none."""
    return isinstance(value, str) and value != "" and value.encode(errors="ignore").decode() == value


def _type(kind: object) -> str:
    kind = plain(kind)
    if not _is_text(kind) or len(kind) > 200:
        raise ValueError(f"The type of an event must be a string of 1 to 200 characters, not {kind!r:.200}.")
    return kind


def _score(time: Time) -> str:
    """Return a time as Redis reads it. A subclass of float, such as NumPy's float64, may have another repr()."""
    return json.dumps(seconds(time))


def _range(start: When, end: When) -> tuple[str, str]:
    return "-inf" if start is None else _score(start), "+inf" if end is None else f"({_score(end)}"


def _encode(event: Mapping[str, Any]) -> list[Argument]:
    """Return the type, timestamp, number of fields, and then fields and values."""
    if not isinstance(event, Mapping) or "type" not in event:
        raise ValueError(f"An event must be a dict with at least a type, not {event!r:.200}.")
    if "id" in event:
        raise ValueError("An event gets its id from the log; remove the field, or give it another name.")
    kind = _type(event["type"])
    fields: dict[str, Any] = {**event, "type": kind}
    if (time := fields.pop("timestamp", None)) is not None:
        fields["timestamp"] = seconds(time)
    flat: list[Argument] = []
    for name, value in fields.items():
        if not _is_text(name):
            raise ValueError(f"The name of an event's field must be a non-empty string, not {name!r:.200}.")
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (RecursionError, TypeError, ValueError):
            what = f"the {type(value).__name__} in field {name!r:.200}"
            raise ValueError(f"JSON cannot represent {what}; convert it first.") from None
        if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _is_deep(value):
            raise ValueError(f"Field {name!r:.200} is nested more than {MAX_DEPTH} deep; store a flatter value.")
        flat += (name.encode(), text)
    return [kind, "" if time is None else _score(time), str(len(fields)), *flat]


def _is_deep(value: object, most: int = MAX_DEPTH) -> bool:
    """Return whether more than ``most`` lists and dicts are inside each other."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return inside is not None and (most == 0 or any(_is_deep(each, most - 1) for each in inside))


def _decode(event_id: int, flat: Sequence[Any]) -> Event | None:
    """Return an event; None if it is gone. A value that can't be read, as something else may write it, is a text."""
    event: Event = {"id": event_id}
    for name, text in as_pairs(flat):
        event[as_text(name)] = as_text(text)
        with suppress(*UNREADABLE):
            event[as_text(name)] = json.loads(text)
    return event if flat else None


_log = EventLog()
record_event = _log.record_event
record_events = _log.record_events
arecord_event = _log.arecord_event
arecord_events = _log.arecord_events
get_event = _log.get_event
latest = _log.latest
oldest = _log.oldest
count_events = _log.count_events
count_type = _log.count_type
count_types = _log.count_types
list_types = _log.list_types
trim_events = _log.trim_events
