"""What the core costs, by public names only, so that it runs unchanged when all below them changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from django.utils import timezone

import notifications_counter
from notifications_counter.counters import BUILT_IN, unread
from notifications_counter.models import Notification
from tests.support import in_use

from .bench import LIMIT, OURS, Report, number, race, say, size, table, time
from .models import PlainNotification
from .rivals import Ours, Rival, fill, quoted, sql

Do, NOW = Callable[..., object], timezone.now()
PACKAGE = str(Path(notifications_counter.__file__).parent)


def statements(report: Report, quick: bool) -> str:
    found = requests(5 if quick else 15)
    return table(["", "counted", "not counted", "÷"], ([name, *some] for name, _, *some, _ in found))


def flusher(report: Report, quick: bool) -> str:
    found = [*flushes(quick), *walks(20_000 if quick else 200_000)]
    return table(["", "all", "each", "calls, each"], ([*line[:3], line[-1]] for line in found))


def line(name: str, units: int, rounds: int, do: Do, plain: Do | None = None, prepare: Do = lambda: None) -> list[str]:
    """Return the name, the times of all units and of each, that of each if nothing is counted, the ratio, and the calls
    of our functions."""
    does = {"not counted": plain, OURS: do} if plain else {OURS: do}
    found = race(does, rounds=rounds, units=units, prepare=prepare)
    prepare()
    calls, each = number(calls_of(do) / units), found.median()
    beside = [time(found.median("not counted")), found.ratio(OURS)] if plain else ["", ""]
    say(f"{name}: {time(each)}, {beside[1]} in {calls} calls")
    return [name, time(each * units), time(each), *beside, calls]


def calls_of(do: Do) -> int:
    """Count the calls of the app's functions, which are the same each time, however busy the machine is."""
    calls = 0

    def see(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    sys.setprofile(see)
    do()
    sys.setprofile(None)
    return calls


def forget() -> None:
    """Leave no count in the cache, and none in doubt."""
    unread.invalidate()
    assert not unread.heal(seconds=600).unfinished


def right(owners: range) -> None:
    for user in owners[:: len(owners) // 50]:
        assert unread.count(user) == Notification.objects.filter(user_id=user, read_at=None).count(), user


def requests(rounds: int) -> Iterator[list[str]]:
    """Measure what requests do, and the same on a table that nobody counts, whose badge is ``COUNT(*)``."""
    few, all_ = range(1, 101), range(1, 1_001)
    fill(1_000, 10, [Ours(), Rival()])

    def create(model: Any) -> object:
        return [model.objects.create(user_id=user, kind="new") for user in few]

    def renew() -> None:
        for model in (Notification, PlainNotification):
            model.objects.filter(kind="new").delete()
            model.objects.bulk_create([model(user_id=user, kind="new") for user in all_])
        unread.counts(all_)

    def count() -> object:
        return [unread.count(user) for user in few]

    def count_rows() -> object:
        return [PlainNotification.objects.filter(user_id=user, read_at=None).count() for user in few]

    yield line("`count()`, not cached", 100, rounds, count, count_rows, forget)
    ways: dict[str, Do] = {
        "`update()` of 1,000 owners": lambda model: model.objects.filter(kind="new").update(read_at=NOW),
        "`delete()` of 1,000 owners": lambda model: model.objects.filter(kind="new").delete(),
    }
    for name, do in ways.items():
        yield line(name, 1, rounds, partial(do, Notification), partial(do, PlainNotification), renew)
    right(all_)
    with in_use(*BUILT_IN):
        for counter in BUILT_IN.values():
            assert not counter.heal(seconds=600).unfinished
        plain = partial(create, PlainNotification)
        yield line("`create()`, three counters", 100, rounds, partial(create, Notification), plain, renew)


def flushes(quick: bool) -> Iterator[list[str]]:
    """Measure by the rows of an owner, each of whom has a new one, with counts that are cached or not."""
    limit = partial(sql, f"UPDATE {quoted(unread.totals)} SET unread_count = unread_count + 1")
    for each, owners in ((0, 100_000), (10, 20_000), (1_000, 2_000)):
        owners //= 10 if quick else 1
        all_ = range(1, owners + 1)
        fill(owners, each, [Ours()])

        def touch(cached: range, all_: range = all_) -> None:
            forget()
            unread.counts(cached)
            Notification.objects.bulk_create((Notification(user_id=user) for user in all_), batch_size=10_000)

        for state, cached in (("cached", all_), ("cold", range(0))):
            name = f"`flush()` of {size(owners)} {state} owners with {size(each)} rows"
            yield line(name, owners, 3 if each else 1, unread.flush, prepare=partial(touch, cached))
        yield line(f"{LIMIT}one `UPDATE` of {size(owners)} stored totals", owners, 1, limit)
        right(all_)


def walks(owners: int) -> Iterator[list[str]]:
    """Measure a walk, and recounts that find every count right, or wrong."""
    fill(owners, 5, [Ours()])
    spoil = f"UPDATE {quoted(Notification)} SET read_at = CASE WHEN read_at IS NULL THEN CURRENT_TIMESTAMP END"
    yield line(f"`invalidate()` and `heal()` of {size(owners)} owners", owners, 2, forget)
    for some, them in ((owners, None), (owners // 10, range(1, owners // 10 + 1))):
        name, do = f"`recount()` of {size(some)} owners", partial(unread.recount, them)
        yield line(f"{name}, right", some, 2, do)
        yield line(f"{name}, wrong", some, 2, do, prepare=partial(sql, f"{spoil} WHERE user_id <= {some}"))
    right(range(1, owners + 1))
