"""An event log in Redis: events by time and by type, and counts over a range.

An event is a dict with at least a ``type``, and a ``timestamp`` (now, if it has none); it comes back as the same dict
with its ``id``. Ranges are half-open: ``start`` is in, ``end`` is out. Times are seconds since the epoch or aware
datetimes. Every function raises BufferUnavailable when Redis is out of reach, or the database has not been migrated.

    record_event({"type": "login", "user": 7})
    count_types(start=nine, end=ten)
"""

from __future__ import annotations

import json
import math
from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async

from .buffer.client import ARGUMENTS, Argument, Client, client_of, in_groups
from .buffer.scripts import script
from .buffer.types import decode, pairs
from .conf import options
from .databases import current

Event = dict[str, Any]
Time = float | int | datetime

EVENTS_PER_CALL = 1000
"""Events that one script call reads or removes at the most, so that it never holds Redis for long."""


class EventLog:
    """One log for each database, and for each schema of a tenant.

    ``name``    second part of its keys
    ``alias``   the cache whose Redis holds it
    ``shared``  one log for all of them instead, which needs no database
    """

    def __init__(self, name: str = "events", alias: str | None = None, shared: bool = False):
        self.name = name
        self.alias = alias
        self.shared = shared

    @property
    def _client(self) -> Client:
        return client_of(self.alias or options.CACHE_ALIAS)

    @property
    def base(self) -> str:
        """The beginning of every key of the log. The hash tag keeps it on one node of a cluster."""
        tag = f"{{{options.KEY_PREFIX}:{self.name}}}"
        return tag if self.shared else f"{tag}:{current().logs}"

    def _key(self, *parts: object) -> str:
        return ":".join(str(part) for part in (self.base, *parts))

    def _run(self, name: str, *args: Argument) -> Any:
        """Call a script, with the keys that it names, and return its reply."""
        chosen = script(name)
        return self._client.run(chosen, [self._key(key) for key in chosen.keys], (self.base, *args))

    # ----------------------------------------------------------------- writes
    def record_event(self, event: Mapping[str, Any]) -> int:
        """Store an event. Returns its id, which is never used twice."""
        return self.record_events([event])[0]

    def record_events(self, events: Iterable[Mapping[str, Any]]) -> list[int]:
        """Store many, some hundreds in a round trip. ValueError before anything is stored if one is not valid."""
        encoded = [_encode(event) for event in events]
        ids: list[int] = []
        ttl = "" if self.shared else current().ttl
        for some in in_groups(encoded, len, ARGUMENTS - 100):
            ids += self._run("record_events", ttl, *(argument for event in some for argument in event))
        return ids

    def trim(self, max_age: float | None = None, max_length: int | None = None, now: Time | None = None) -> int:
        """Remove events older than ``max_age`` seconds, and the oldest beyond ``max_length``. Returns how many."""
        if max_age is not None and not (_is_number(max_age) and max_age >= 0):
            raise ValueError(f"max_age must be a number of seconds, not negative, and is {max_age!r}.")
        if max_length is not None and not (_is_whole(max_length) and max_length >= 0):
            raise ValueError(f"max_length must be a number of events, not negative, and is {max_length!r}.")
        before = ""
        if max_age is not None:
            clock = datetime.now().timestamp() if now is None else _seconds(now, "now")
            before = repr(clock - max_age)
        removed = 0
        while True:
            count = self._run("trim_events", before, "" if max_length is None else max_length, EVENTS_PER_CALL)
            removed += count
            if count < EVENTS_PER_CALL:
                return removed

    # ------------------------------------------------------------------ reads
    def get_event(self, event_id: int) -> Event | None:
        """Return the event with this id, None if it does not exist or was removed."""
        key = self._key("event", event_id)
        fields = self._client.call(key, "HGETALL", key)
        flat = [x for pair in fields.items() for x in pair] if isinstance(fields, dict) else fields
        return _decode(event_id, flat) if flat else None

    def latest(self, limit: int = 100, type: str | None = None) -> list[Event]:
        """The newest events, newest first."""
        return self._page("before", None, limit, type)

    def oldest(self, limit: int = 100, type: str | None = None) -> list[Event]:
        """The oldest events, oldest first."""
        return self._page("after", None, limit, type)

    def before(self, position: Time | Event, limit: int = 100, type: str | None = None) -> list[Event]:
        """Events before a time, or before an event, newest first. The last of a page is the position of the next."""
        return self._page("before", position, limit, type)

    def after(self, position: Time | Event, limit: int = 100, type: str | None = None) -> list[Event]:
        """Events from a time on, or after an event, oldest first. The last of a page is the position of the next."""
        return self._page("after", position, limit, type)

    def count(self, start: Time | None = None, end: Time | None = None) -> int:
        """How many events happened from ``start`` to ``end``."""
        return self._count(self._key("events"), start, end)

    def count_type(self, type: str, start: Time | None = None, end: Time | None = None) -> int:
        """How many of them are of a type."""
        return self._count(self._key("events", _type(type)), start, end)

    def types(self) -> list[str]:
        """The types of the events in the log, sorted."""
        key = self._key("types")
        return sorted(decode(kind) for kind in self._client.call(key, "SMEMBERS", key))

    def count_types(self, start: Time | None = None, end: Time | None = None, scan: bool = False) -> dict[str, int]:
        """``{type: n}`` of the events from ``start`` to ``end``, without types that have none.

        A ZCOUNT for each type; with ``scan``, the script of Redis in Action that reads the type of each event, a
        page at a time: slower by orders of magnitude, and independent of the sets by type.
        """
        if not scan:
            counts = {kind: self.count_type(kind, start, end) for kind in self.types()}
            return {kind: n for kind, n in counts.items() if n}
        low, high = _range(start, end)
        tally: Tally[str] = Tally()
        cursor: Sequence[Argument] = ("", "")
        while True:
            score, last, *flat = self._run("count_event_types", low, high, EVENTS_PER_CALL, *cursor)
            for kind, n in pairs(flat):
                tally[json.loads(decode(kind))] += n
            if not last:
                return dict(sorted(tally.items()))
            cursor = (decode(score), decode(last))

    def _count(self, key: str, start: Time | None, end: Time | None) -> int:
        return self._client.call(key, "ZCOUNT", key, *_range(start, end))

    def _page(self, direction: str, position: Time | Event | None, limit: int, type: str | None) -> list[Event]:
        if not (_is_whole(limit) and limit > 0):
            raise ValueError(f"limit must be a whole number of at least 1, and is {limit!r}.")
        key = self._key("events") if type is None else self._key("events", _type(type))
        score = member = ""
        if isinstance(position, Mapping):
            try:
                score, member = _timestamp(position["timestamp"]), f"{position['id']:016d}"
            except (KeyError, ValueError, TypeError):
                raise ValueError("A position must be a time, or an event as this log returned it.") from None
        elif position is not None:
            score = _timestamp(position)
        page: list[Event] = []
        while len(page) < limit:
            size = min(EVENTS_PER_CALL, limit - len(page))
            found = self._client.run(script("page_events"), (key,), (self.base, direction, size, score, member))
            page += [_decode(int(id_), fields) for id_, fields in found if fields]
            if len(found) < size:
                break
            score, member = _timestamp(page[-1]["timestamp"]), f"{page[-1]['id']:016d}"
        return page

    # ------------------------------------------------------------------ async
    async def arecord_event(self, event: Mapping[str, Any]) -> int:
        """``record_event`` for async code."""
        return await sync_to_async(self.record_event)(event)

    async def arecord_events(self, events: Iterable[Mapping[str, Any]]) -> list[int]:
        """``record_events`` for async code."""
        return await sync_to_async(self.record_events)(events)


def _type(kind: Any) -> str:
    if not isinstance(kind, str) or not kind or len(kind) > 200:
        raise ValueError(f"The type of an event must be a text of 1 to 200 characters, and is {kind!r}.")
    return kind


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _seconds(time: Time, what: str) -> float | int:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError(f"{what} is a naive datetime; give it a time zone, or seconds since the epoch.")
        return time.timestamp()
    if not _is_number(time):
        raise ValueError(f"{what} must be seconds since the epoch or an aware datetime, and is {time!r}.")
    return time


def _timestamp(time: Time) -> str:
    return repr(_seconds(time, "A timestamp"))


def _range(start: Time | None, end: Time | None) -> tuple[str, str]:
    return "-inf" if start is None else _timestamp(start), "+inf" if end is None else f"({_timestamp(end)}"


def _encode(event: Mapping[str, Any]) -> list[Argument]:
    """Type, timestamp, number of fields, fields and values."""
    if not isinstance(event, Mapping) or "type" not in event:
        raise ValueError(f"An event is a dict with at least a type; this is {event!r}.")
    if "id" in event:
        raise ValueError("An event gets its id from the log; leave it out, or give the field another name.")
    kind = _type(event["type"])
    timestamp: Any = event.get("timestamp")
    fields: dict[str, Any] = {k: v for k, v in event.items() if k != "timestamp"}
    if timestamp is not None:
        timestamp = fields["timestamp"] = _seconds(timestamp, "timestamp")
    flat: list[Argument] = []
    for name, value in fields.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"The fields of an event are named by texts, not by {name!r}.")
        try:
            flat += (name, json.dumps(value, ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError):
            raise ValueError(f"Field {name!r} holds {value!r}, which JSON cannot hold; convert it first.") from None
    return [kind, "" if timestamp is None else repr(timestamp), len(fields), *flat]


def _decode(event_id: int, flat: Sequence[Any]) -> Event:
    return {"id": event_id, **{decode(name): json.loads(value) for name, value in pairs(flat)}}


_log = EventLog()
record_event = _log.record_event
record_events = _log.record_events
arecord_event = _log.arecord_event
arecord_events = _log.arecord_events
get_event = _log.get_event
latest = _log.latest
oldest = _log.oldest
before = _log.before
after = _log.after
count = _log.count
count_type = _log.count_type
count_types = _log.count_types
types = _log.types
trim = _log.trim
