"""What the core costs, by public names only, so that it runs unchanged when all below them changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.models import Notification

from .bench import OURS, Report, race, size, table, time
from .models import PlainNotification
from .rivals import Ours, Rival, fill, quoted, sql

Do, NOW = Callable[..., object], timezone.now()


def core(report: Report, quick: bool) -> str:
    lines = [*requests(5 if quick else 20), *flushes(quick), *walks(20_000 if quick else 200_000)]
    return table(["", "all", "each", "÷ uncounted"], lines)


def line(name: str, number: int, rounds: int, do: Do, plain: Do | None = None, prepare: Do = lambda: None) -> list[str]:
    does = {"uncounted": plain, OURS: do} if plain else {OURS: do}
    found = race(does, rounds=rounds, units=number, prepare=prepare, about=name)
    return [name, time(found.median() * number), time(found.median()), found.ratio(OURS) if plain else ""]


def forget() -> None:
    """Leave no count in the cache, and none in doubt."""
    unread.invalidate()
    assert not unread.heal(seconds=600).unfinished


def right(owners: range) -> None:
    for user in owners[:: len(owners) // 50]:
        assert unread.count(user) == Notification.objects.filter(user_id=user, read_at=None).count(), user


def requests(rounds: int) -> Iterator[list[str]]:
    """Measure what requests do, and the same on a table that nobody counts, whose badge is ``COUNT(*)``."""
    few, all_, fresh = range(1, 101), range(1, 1_001), dict[Any, list[Any]]()
    fill(1_000, 10, [Ours(), Rival()])

    def create(model: Any) -> object:
        return [model.objects.create(user_id=user, kind="new") for user in few]

    def create_all(model: Any) -> None:
        fresh[model] = model.objects.bulk_create([model(user_id=user, kind="new") for user in all_])

    def renew() -> None:
        for model in (Notification, PlainNotification):
            model.objects.filter(kind="new").delete()
            create_all(model)
        unread.counts(all_)

    def each(do: Do) -> Do:
        return lambda model: [do(row) for row in fresh[model][:100]]

    count = lambda: [unread.count(user) for user in few]  # noqa: E731
    rival = lambda: [PlainNotification.objects.filter(user_id=user, read_at=None).count() for user in few]  # noqa: E731
    yield line("`count()`, cached", 100, rounds, count, rival)
    yield line("`count()`, cold", 100, rounds, count, rival, forget)
    yield line("`counts()`, cached", 1_000, rounds, partial(unread.counts, all_))
    yield line("`counts()`, cold", 1_000, rounds, partial(unread.counts, all_), prepare=forget)
    ways: dict[str, tuple[int, Do]] = {
        "`create()`": (100, create),
        "`create()` of 100 in a transaction": (100, transaction.atomic(create)),
        "`bulk_create()` for 1,000 owners": (1_000, create_all),
        "`update()` of a row": (100, each(lambda row: type(row).objects.filter(pk=row.pk).update(read_at=NOW))),
        "`update()` of 1,000 owners": (1_000, lambda model: model.objects.filter(kind="new").update(read_at=NOW)),
        "`delete()` of an instance": (100, each(lambda row: row.delete())),
        "`delete()` of 1,000 owners": (1_000, lambda model: model.objects.filter(kind="new").delete()),
    }
    for name, (number, do) in ways.items():
        yield line(name, number, rounds, partial(do, Notification), partial(do, PlainNotification), renew)
    right(all_)


def flushes(quick: bool) -> Iterator[list[str]]:
    """Measure by the rows of an owner, each of whom has a new one, with counts that are cached or not."""
    for each, owners in ((10, 2_000 if quick else 20_000), (1_000, 200 if quick else 2_000)):
        all_ = range(1, owners + 1)
        fill(owners, each, [Ours()])

        def touch(cached: range, all_: range = all_) -> None:
            forget()
            unread.counts(cached)
            Notification.objects.bulk_create((Notification(user_id=user) for user in all_), batch_size=10_000)

        for state, cached in (("cached", all_), ("cold", range(0))):
            name = f"`flush()` of {size(owners)} {state} owners with {size(each)} rows"
            yield line(name, owners, 3, unread.flush, prepare=partial(touch, cached))
        right(all_)


def walks(owners: int) -> Iterator[list[str]]:
    """Measure a recovery, and recounts that find every count right, or wrong."""
    fill(owners, 5, [Ours()])
    spoil = f"UPDATE {quoted(Notification)} SET read_at = CASE WHEN read_at IS NULL THEN CURRENT_TIMESTAMP END"
    yield line(f"`invalidate()` and `heal()` of {size(owners)} owners", owners, 2, forget)
    for number, them in ((owners, None), (owners // 10, range(1, owners // 10 + 1))):
        name, do = f"`recount()` of {size(number)} owners", partial(unread.recount, them)
        yield line(f"{name}, right", number, 2, do)
        yield line(f"{name}, wrong", number, 2, do, prepare=partial(sql, f"{spoil} WHERE user_id <= {number}"))
    right(range(1, owners + 1))
