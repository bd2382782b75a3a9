"""Checks of the Redis server: its INFO, and whether it runs every command of the app."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any
from uuid import uuid4

from django.core.checks import CheckMessage, Error, Warning

from ..buffer import Buffer
from ..buffer.client import client_of
from ..buffer.keys import Keys
from ..buffer.upkeep import IDENTITY
from ..conf import options
from ..declaration.primary_keys import CompositeKey
from ..events import EventLog
from ..exceptions import BufferUnavailable, CommandRefused
from ..maintenance.places import at, places
from ..timeseries import TimeSeries
from .registration import REDIS_TAG, Messages, check, id_, sound_counters
from .settings import addresses, check_cache


@check(REDIS_TAG, deploy=True)
def check_redis() -> Messages:
    """Check that Redis evicts no changes, has a name, and runs every command of the app."""
    if any(message.is_serious() for message in check_cache()):
        return
    found: list[CheckMessage] = []
    try:
        for counter in sound_counters():
            for place in places(counter.source)[:1]:
                with at(place):
                    for buffer in counter.buffers:
                        found += [*check_server(buffer.upkeep.info()), *check_commands(buffer)]
        found += check_logs()
    except BufferUnavailable as error:
        where = addresses(options.CACHE_ALIAS)
        hint = f"The cache is at {where}: correct its LOCATION if that is wrong. Rows are counted meanwhile."
        yield Warning(f"{error}", hint=hint, id=id_("W006"))
    yield from {message.msg: message for message in found}.values()  # several shards may be on one node


def check_server(info: Mapping[str, str]) -> Messages:
    """Check the INFO of a server."""
    if missing := [name for name in IDENTITY if not info.get(name)]:
        yield Warning(
            f"Redis does not report its {' and '.join(missing)}, so the app may not notice that a restart or a "
            "failover has brought back older data.",
            hint="Allow the command INFO. If that is not possible, run `manage.py recount_counters --restored` after "
            "each restart and failover.",
            id=id_("W007"),
        )
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys") and info.get("maxmemory") != "0":
        yield Error(
            f"Redis may evict changes that are not flushed yet, because its maxmemory-policy is {policy}.",
            hint="Set maxmemory-policy to noeviction, or to one of the volatile-* policies.",
            id=id_("E021"),
        )


def check_commands(buffer: Buffer) -> Messages:
    """Try every command of the counters, under keys of their own, and report refusals."""
    base = f"{buffer.keys.base}:check:{uuid4().hex}"
    trial = Buffer(buffer.client, Keys(base, f"{base}:database"))
    keys = [getattr(trial.keys, field.name) for field in fields(trial.keys)]
    owner, intent = str(CompositeKey((1, 2))), "intent"
    attempts: list[Callable[[], Any]] = [
        lambda: trial.upkeep.recover(1, "server"),
        lambda: trial.upkeep.complete(1, "server"),
        lambda: trial.announce(intent, [owner]),
        lambda: trial.confirm(intent, {owner: 1}),
        lambda: trial.take_leases([owner], "token"),
        lambda: trial.fix(1, "token", {owner: 1}),
        lambda: trial.keep(trial.take_free_leases([owner], "token"), "token", {owner: 1}),
        lambda: trial.announce(intent, [owner]),
        lambda: trial.confirm(intent, {owner: 1}),  # changes the cached total, too
        lambda: trial.client.call(trial.keys.ready, "MGET", trial.keys.ready),
        lambda: trial.mark_dirty([owner]),
        lambda: trial.upkeep.take_dirty(0, 1),
        lambda: trial.upkeep.cut(1),
        lambda: trial.upkeep.fetch(10**9 + 1, 0, 1),
        lambda: trial.upkeep.reject({owner: "1"}),
        lambda: trial.upkeep.finish(10**9 + 1, "batch id"),
        lambda: list(trial.upkeep.waiting()),
        lambda: list(trial.upkeep.intents()),
        lambda: trial.upkeep.drop(intent),
        lambda: trial.upkeep.note_recounted(owner),
        trial.upkeep.recounted,
        trial.upkeep.status,
        lambda: trial.upkeep.monitor(1),
        lambda: trial.listen(1),
        trial.heartbeat,
        trial.upkeep.forget,
        trial.upkeep.retire,
        trial.upkeep.reuse,
        lambda: trial.client.call(keys[0], "DEL", *keys),
    ]
    yield from _refusals(attempts)


def check_logs() -> Messages:
    """Try every command of the event log and of the time-sliced counters."""
    name = f"check:{uuid4().hex}"
    log = EventLog(name, shared=True)
    series = TimeSeries(name=name, shared=True)
    client, known, precisions = client_of(options.CACHE_ALIAS), f"{series.base}:known", series.precisions
    attempts: list[Callable[[], Any]] = [
        lambda: log.record_event({"type": "check"}),
        lambda: log.get_event(1),
        lambda: log.before({"id": 1, "timestamp": 0}, 1),
        log.count_types,
        lambda: log.count_types(scan=True),
        lambda: log.trim_events(max_age=0, max_length=0),
        lambda: client.call(log.base, "DEL", f"{log.base}:next"),
        lambda: series.update_counter("check"),
        lambda: series.get_counter("check", precisions[0]),
        series.list_counters,
        series.clean_counters,
        lambda: client.call(known, "DEL", known, *(f"{series.base}:{precision}:check" for precision in precisions)),
    ]
    yield from _refusals(attempts)


def _refusals(attempts: Iterable[Callable[[], Any]]) -> Messages:
    for attempt in attempts:
        try:
            attempt()
        except CommandRefused as error:
            yield Error(f"{error}.", hint=cure(str(error)), id=id_("E022"))


def cure(refusal: str) -> str:
    """Return what to do about a refusal."""
    if "undeclared key" in refusal:
        return "Start Dragonfly with --cluster_mode=emulated --lock_on_hashtags."
    if "perm" in refusal or "can't" in refusal:
        return "Let the Redis user run it on the keys of the counters: ACL SETUSER <user> +@all ~{<KEY_PREFIX>:*."
    return "Use a server that has all commands of Redis 6.2, including inside scripts."
