"""What happens to single instances: signals of the source model, brought to the ledger.

A counted model (``CountedModel``) counts its saves itself, by ``saved``. For a model that cannot be changed, signals
send the owners to a recount. Deletions are exact for both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain
from typing import Any

from django.apps import apps
from django.db import connections, transaction
from django.db.models import NOT_PROVIDED, Model, QuerySet
from django.db.models.signals import class_prepared, post_delete, post_save, pre_delete, pre_save
from django.dispatch import receiver

from .declaration import Declaration, counters_of
from .writes.ledger import Ledger
from .writes.rows import RowStates, activity, difference, locked, states
from .writes.transaction import Log


def connect(model: type[Model]) -> None:
    """Listen to a model if it is the source of a counter, a proxy or a child of one."""
    if counters_of(model):
        for signal, handler in DELETIONS if hasattr(model, "counts_saves") else (*SAVES, *DELETIONS):
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
    ours = {handler for _, handler in DELETIONS}
    live = chain.from_iterable(chain(*(signal._live_receivers(model) for signal in (pre_delete, post_delete))))
    return any(handler not in ours for handler in live)


def sources_of(counters: Collection[Declaration]) -> list[type[Model]]:
    return list(dict.fromkeys(c.source for c in counters))


def pk_of(instance: Model, source: type[Model]) -> Any:
    """The primary key of an instance's row in the table of the source."""
    return getattr(instance, source._meta.pk.attname)


def has_pk(instance: Model, source: type[Model]) -> bool:
    """Has it one? That of several columns is not whole while one of them is empty."""
    pk = pk_of(instance, source)
    return None not in pk if isinstance(pk, tuple) else pk is not None


def owner_of(counter: Declaration, instance: Model) -> str | None:
    """The owner an instance believes to have; None also if it cannot tell."""
    return counter.encode(instance.__dict__[counter.owner_attname]) if tells_owner(counter, instance) else None


def tells_owner(counter: Declaration, instance: Model) -> bool:
    """Does the instance know its owner, if only that it has none? Not while it is deferred or an expression."""
    owner = instance.__dict__.get(counter.owner_attname, instance)
    return owner is not instance and not hasattr(owner, "resolve_expression")


# ------------------------------------------------------------------------ saves
def saved(
    instance: Model,
    source: type[Model],
    using: str,
    inserts: bool,
    update_fields: Collection[str] | None,
    save: Callable[[], bool],
) -> bool:
    """Save an instance in the table of a source by ``save``, and count that: right there, because receivers of others,
    before ours and after, may change both row and instance, or raise."""
    counters = [c for c in counters_of(source) if c.source is source]
    if update_fields is not None:
        counters = [c for c in counters if c.reads(update_fields)]
    if not counters:
        return save()
    ledger = Ledger.of(using)
    if inserts and all(tells_owner(c, instance) and c.condition.holds(instance, using) is not None for c in counters):
        owners = {c: (m,) for c in counters if (m := owner_of(c, instance)) is not None}

        def insert() -> bool:
            result = save()
            for counter, (member,) in owners.items():
                if counter.condition.holds(instance, using):
                    ledger.record(counter, {member: 1})
            ledger.happened({(counter, "created"): 1 for counter in counters})
            return result

        return ledger.write(owners, insert)
    with transaction.atomic(using=using, savepoint=False):
        before = _lock(instance, source, using)
        result = save()
        after = _lock(instance, source, using)
        for counter, deltas in difference(before.values(), after.values()).items():
            ledger.record(counter, {m: d for m, d in deltas.items() if d})
        ledger.happened(activity(before, after))
    return result


def only_inserts(instance: Model, source: type[Model], updates: bool) -> bool:
    """Will Django save this instance without trying an UPDATE first?"""
    if all(field.has_default() or field.db_default is not NOT_PROVIDED for field in source._meta.pk_fields):
        return instance._state.adding and not updates
    return not has_pk(instance, source)


def _lock(instance: Model, source: type[Model], using: str) -> dict[Any, RowStates]:
    """What the row of an instance counts for, locked; nothing if there is none."""
    return locked(source, using, [pk_of(instance, source)]) if has_pk(instance, source) else {}


def before_save(sender: type[Model], instance: Model, using: str, **_: Any) -> None:
    """The model cannot tell what a save changes: its owners begin, to be recounted."""
    owners = _known_owners(sender, instance, using)
    if connections[using].in_atomic_block:
        ledger = Ledger.of(using)
        for counter, members in owners.items():
            ledger.record(counter, dict.fromkeys(members))
    else:
        log = Log(using)
        log.begin(owners)
        log.settle()
        instance._state.counting_log = log  # type: ignore[attr-defined]


def _known_owners(sender: type[Model], instance: Model, using: str) -> dict[Declaration, set[str]]:
    """The owners of an instance: the one it believes to have, and the one the database knows."""
    owners: dict[Declaration, set[str]] = {
        c: {m} if (m := owner_of(c, instance)) else set() for c in counters_of(sender)
    }
    for source in sources_of(counters_of(sender)):
        if has_pk(instance, source):
            same: QuerySet = QuerySet(source, using=using).filter(pk=pk_of(instance, source))
            stored = states(same, lock=connections[using].in_atomic_block)
            for row in stored.values():
                for counter, member, _ in row:
                    if member is not None:
                        owners[counter].add(member)
    return owners


def after_save(sender: type[Model], instance: Model, using: str, **_: Any) -> None:
    """Send the owners to a recount."""
    log = instance._state.__dict__.pop("counting_log", None)
    ledger = Ledger.of(using)
    for counter, members in _known_owners(sender, instance, using).items():
        (log or ledger).record(counter, dict.fromkeys(members))
    if log is not None:
        log.doubt_the_rest()
        log.send()


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
            ledger.happened(activity({0: row} if row else {}))


SAVES = ((pre_save, before_save), (post_save, after_save))
DELETIONS = ((pre_delete, before_delete), (post_delete, after_delete))
