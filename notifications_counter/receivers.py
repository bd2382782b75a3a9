"""What happens to single instances: signals of the source model, brought to the ledger.

A counted model (``CountedModel``) prepares a save in ``saving``: it begins, or locks the row; ``post_save`` then says
what has changed. For a model that cannot be changed, the owners are recounted. Deletions are exact for both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from django.apps import apps
from django.db import connections, transaction
from django.db.models import NOT_PROVIDED, Model, QuerySet
from django.db.models.signals import class_prepared, post_delete, post_save, pre_delete, pre_save
from django.dispatch import receiver

from .counters import Counter
from .ledger import Ledger
from .log import Log
from .registry import counters_of
from .rows import RowStates, difference, locked, states

State = dict[type[Model], list[RowStates]]


def connect(model: type[Model]) -> None:
    """Listen to a model if it is the source of a counter, a proxy or a child of one."""
    if counters_of(model):
        for signal, handler in HANDLERS:
            signal.connect(handler, sender=model, dispatch_uid="notifications_counter")


def connect_all() -> None:
    """Listen to every model that is there, and to those that will be."""
    for model in apps.get_models(include_auto_created=True):
        connect(model)


@receiver(class_prepared)
def _connect_late(sender: type[Model], **_: Any) -> None:
    if apps.models_ready:
        connect(sender)


def others_listen(model: type[Model]) -> bool:
    """Has anybody else receivers for the deletion of this model?"""
    ours = {handler for _, handler in HANDLERS}
    live = chain.from_iterable(chain(*(signal._live_receivers(model) for signal in (pre_delete, post_delete))))
    return any(handler not in ours for handler in live)


def sources_of(counters: Collection[Counter]) -> list[type[Model]]:
    return list(dict.fromkeys(c.source for c in counters))


def pk_of(instance: Model, source: type[Model]) -> Any:
    """The primary key of an instance's row in the table of the source."""
    return getattr(instance, source._meta.pk.attname)


def owner_of(counter: Counter, instance: Model) -> str | None:
    """The owner an instance believes to have."""
    return counter.encode(instance.__dict__.get(counter.owner_attname))


# ------------------------------------------------------------------------ saves
@contextmanager
def saving(instance: Model, using: str, force_insert: Any, update_fields: Collection[str] | None) -> Iterator[None]:
    """Around the save of a counted instance: users begin before it, and what it may change is locked."""
    counters = [c for c in counters_of(type(instance)) if update_fields is None or c.reads(update_fields)]
    if not counters:
        instance._state.counted = {}  # type: ignore[attr-defined]
        yield
        return
    ledger = Ledger.of(using)
    if _is_insert(instance, force_insert) and all(c.condition.holds(instance, using) is not None for c in counters):
        owners = {c: [m] for c in counters if (m := owner_of(c, instance)) is not None}
        with ledger.writing(owners):
            instance._state.counted = None  # type: ignore[attr-defined]
            yield
        return
    with transaction.atomic(using=using, savepoint=False):
        instance._state.counted = _lock(instance, using, counters)  # type: ignore[attr-defined]
        yield


def _is_insert(instance: Model, force_insert: Any) -> bool:
    """Can this save only insert, and only into the source's own table?"""
    pk = instance._meta.pk
    concrete: Any = instance._meta.concrete_model
    if concrete._meta.parents:
        return False
    has_default = pk.default is not NOT_PROVIDED or pk.db_default is not NOT_PROVIDED
    return bool(force_insert or (instance._state.adding and (instance.pk is None or has_default)))


def _lock(instance: Model, using: str, counters: Collection[Counter]) -> State:
    """What the rows of an instance count for, locked."""
    found: State = {}
    for source in sources_of(counters):
        pk = pk_of(instance, source)
        found[source] = [] if pk is None else list(locked(source, using, [pk]).values())
    return found


def before_save(sender: type[Model], instance: Model, raw: bool, using: str, **_: Any) -> None:
    """Owners whose rows are written in a way that cannot be followed begin, to be recounted."""
    if raw or "counted" not in instance._state.__dict__:
        owners = _known_owners(sender, instance, using)
        ledger = Ledger.of(using)
        if connections[using].in_atomic_block:
            for counter, members in owners.items():
                ledger.record(counter, dict.fromkeys(members))
        else:
            log = Log(using)
            log.begin(owners)
            log.settle()
            instance._state.counting_log = log  # type: ignore[attr-defined]


def _known_owners(sender: type[Model], instance: Model, using: str) -> dict[Counter, set[str]]:
    """The owners of an instance: the one it believes to have, and the one the database knows."""
    owners: dict[Counter, set[str]] = {c: {m} if (m := owner_of(c, instance)) else set() for c in counters_of(sender)}
    for source in sources_of(counters_of(sender)):
        pk = pk_of(instance, source)
        if pk is not None:
            stored = states(QuerySet(source, using=using).filter(pk=pk), lock=connections[using].in_atomic_block)
            for row in stored.values():
                for counter, member, _ in row:
                    if member is not None:
                        owners[counter].add(member)
    return owners


def after_save(sender: type[Model], instance: Model, created: bool, raw: bool, using: str, **_: Any) -> None:
    """Record what the save has changed."""
    ledger = Ledger.of(using)
    missing = object()
    before: Any = instance._state.__dict__.pop("counted", missing)
    log = instance._state.__dict__.pop("counting_log", None)
    if raw or before is missing:
        for counter, members in _known_owners(sender, instance, using).items():
            if log is None:
                ledger.record(counter, dict.fromkeys(members))
            else:
                log.record(counter, dict.fromkeys(members))
        if log is not None:
            log.doubt_the_rest()
            log.send()
    elif before is None:
        for counter in counters_of(sender):
            member = owner_of(counter, instance)
            holds = counter.condition.holds(instance, using)
            if member is not None and holds is not False:
                ledger.record(counter, {member: 1 if holds and created else None})
    elif before:
        after = _lock(instance, using, [c for c in counters_of(sender) if c.source in before])
        for source, rows in before.items():
            for counter, deltas in difference(rows, after[source]).items():
                ledger.record(counter, {m: d for m, d in deltas.items() if d})


# -------------------------------------------------------------------- deletions
def before_delete(sender: type[Model], instance: Model, using: str, **_: Any) -> None:
    """Note a row that is about to be deleted; parents of a child are announced on their own."""
    for source in sources_of(counters_of(sender)):
        if sender._meta.concrete_model is source:
            Ledger.of(using).doom(source, pk_of(instance, source))


def after_delete(sender: type[Model], instance: Model, using: str, **_: Any) -> None:
    """Subtract what the database said of the row."""
    ledger = Ledger.of(using)
    for source in sources_of(counters_of(sender)):
        if sender._meta.concrete_model is source:
            row = ledger.deleted(source, pk_of(instance, source))
            for counter, deltas in difference([row] if row else []).items():
                ledger.record(counter, deltas)


HANDLERS = (
    (pre_save, before_save),
    (post_save, after_save),
    (pre_delete, before_delete),
    (post_delete, after_delete),
)
