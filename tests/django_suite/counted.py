"""Counters on the models of Django's tests, and a comparison of what a statement has changed with what was recorded."""

import itertools
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, partial, wraps
from typing import Any

from django.apps import apps
from django.core.checks.registry import registry
from django.db import connections
from django.db.models import (
    DO_NOTHING,
    BooleanField,
    CharField,
    Count,
    ForeignKey,
    IntegerField,
    Model,
    Q,
    QuerySet,
    Sum,
)
from django.db.models.signals import post_migrate, pre_migrate

from notifications_counter.buffer.types import EVERYONE
from notifications_counter.checks.counters import KEY_FIELDS, check_changes, check_columns
from notifications_counter.counters import Counter
from notifications_counter.databases.identity import look_up_after_migrate
from notifications_counter.declaration import Declaration, declarations
from notifications_counter.models.fields import is_converted_by_django, target_of
from notifications_counter.upkeep import new_tables
from notifications_counter.writes import hook
from notifications_counter.writes.change import Change
from notifications_counter.writes.ledger import Ledger
from notifications_counter.writes.plans import Plan

from .shim import Result, report

OURS = "notifications_counter"

write = Ledger.write
numbers = itertools.count()


def install() -> None:
    """Declare the counters of all models that are installed, and look at each statement that they count."""
    if Ledger.write is write:
        hide_the_app()
        for kind, name in hook.HOOKED:
            if kind in hook.QUERIES and hasattr(kind, name):
                setattr(kind, name, compared(getattr(kind, name)))
        Ledger.write = note  # type: ignore[method-assign]
    declared = {counter.source_label for counter in declarations()}
    for model in apps.get_models(include_auto_created=True):
        meta = model._meta
        if meta.managed and not meta.proxy and meta.app_label != OURS and meta.label not in declared:
            declare(model)


def hide_the_app() -> None:
    """Django's tests hide all apps but those that they use, and some count checks or receivers. The app itself still
    finds its models."""
    get_model, models = apps.get_model, apps.all_models[OURS]

    def find(label: str, name: str | None = None, **kwargs: Any) -> Any:
        app, _, model = label.partition(".")
        return models[(name or model).lower()] if app == OURS else get_model(label, name, **kwargs)

    apps.get_model = find  # type: ignore[method-assign, assignment]
    registry.registered_checks = {c for c in registry.registered_checks if not c.__module__.startswith(OURS)}
    models["notification"]._meta.get_field(
        "user"
    ).remote_field.on_delete = DO_NOTHING  # no query when a user is deleted
    for signal in (pre_migrate, post_migrate):
        for receiver in (new_tables.note_missing, new_tables.declare_made, look_up_after_migrate):
            signal.disconnect(receiver, sender=apps.get_app_config(OURS))


# ------------------------------------------------------------------ counters
class Counted(Counter):
    """A counter that is never flushed, and so needs no totals. Any column may be its owner."""

    total_fields = property(lambda self: self.owner_fields)

    def _register(self) -> None:
        if not any((*check_columns(self), *check_changes(self))):
            super()._register()


def declare(model: type[Model]) -> None:
    """Declare up to four counters of a model, for other owners and under other conditions, and up to three sums."""
    columns = model._meta.local_concrete_fields
    keys = sorted(filter(identifies, columns), key=lambda field: not isinstance(field, ForeignKey))
    owners: list[Any] = [field.name for field in keys[:2]]
    if len(keys) > 1:
        owners.insert(1, (keys[0].name, keys[-1].name))
    decisive = sorted(columns, key=lambda field: field.primary_key)
    conditions = [Q(), *[Q(**condition) for field in decisive for condition in conditions_on(field)][:2]]
    if len(conditions) > 2:
        conditions.append(conditions[1] | ~conditions[2])
    sums: list[Any] = [None] * max(len(owners), len(conditions))
    sums += [f.name for f in decisive if isinstance(getattr(f, "output_field", f), IntegerField)][:3]
    for i, sum in enumerate(sums if owners else []):
        Counted(
            f"{model._meta.label:.90} {next(numbers)}",
            source=model._meta.label,
            owner=owners[i % len(owners)],
            condition=conditions[i % len(conditions)],
            sum=sum,
            totals=f"{OURS}.UserNotificationsCount",
            field="unread_count",
        )


def identifies(field: Any) -> bool:
    """Return whether owners can be told apart by the values of this column, as E003 demands."""
    target = target_of(field)
    return (
        isinstance(target, KEY_FIELDS)
        and not field.primary_key
        and not any(hasattr(f, "from_db_value") or not is_converted_by_django(f) for f in (field, target))
    )


def conditions_on(field: Any) -> Iterator[dict[str, Any]]:
    if field.null:
        yield {f"{field.name}__isnull": True}
    elif isinstance(field, BooleanField):
        yield {field.name: True}
    elif isinstance(field, IntegerField):
        yield {f"{field.name}__gt": 1}
    elif isinstance(field, CharField):
        yield {f"{field.name}__contains": "a"}


# ---------------------------------------------------------------- comparison
under_way: list[list[tuple[Any, ...]]] = []
"""For each statement that is being executed, what was recorded meanwhile: counter and deltas, or only the counter if
anyone's count may have changed. A statement may execute others, for the tables of its parents."""


def note(ledger: Ledger, plan: Plan) -> Any:
    def execute() -> tuple[Any, Change]:
        result, change = plan.execute()
        for recorded in under_way:
            recorded += [(counter,) if EVERYONE in deltas else (counter, deltas) for counter, deltas in change.items()]
        return result, change

    return write(ledger, plan._replace(execute=execute))


@cache
def grouped(counter: Declaration, using: str) -> Any:
    """Return a compiler of GROUP BY owner, with its SQL, its parameters and what converts the values."""
    rows = QuerySet(counter.source, using=using).filter(counter.q).order_by()
    count = Sum(counter.sum) if counter.sum else Count("*")
    query = rows.values_list(*counter.owner_attnames).annotate(counted_rows=count).query
    compiler = query.get_compiler(using)
    sql, params = compiler.as_sql()
    return compiler, sql, params, compiler.get_converters(column for column, *_ in compiler.select)


def count_rows(counter: Declaration, using: str) -> Tally[str]:
    """Count the rows of each owner on a cursor that no test sees."""
    compiler, sql, params, converters = grouped(counter, using)
    with closing(connections[using].create_cursor()) as cursor:
        cursor.execute(sql, params)
        found: Tally[str] = Tally()
        for *owner, number in compiler.apply_converters(cursor.fetchall(), converters):
            (owner_key,) = counter.owner_keys([[value] for value in owner])
            if owner_key is not None:
                found[owner_key] += number or 0
        return found


def compared(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that executes a statement, and compares the deltas that were recorded with the rows before and
    after, which no other thread may change meanwhile."""

    @wraps(execute)
    def compare(compiler: Any, *args: Any, **kwargs: Any) -> Any:
        run = partial(execute, compiler, *args, **kwargs)
        using, mine = compiler.connection.alias, hook._counters_of(compiler)
        if not mine:
            return run()
        # The threads of an executor stay, and have nothing to do.
        running = [thread for thread in threading.enumerate() if not thread.name.startswith("ThreadPoolExecutor")]
        if compiler.connection.needs_rollback or len(running) > 1:
            report(tally={"not compared": len(mine)})
            return run()
        compiler.connection.ensure_connection()
        before = [count_rows(counter, using) for counter in mine]
        under_way.append([])
        try:
            result = run()
        finally:
            recorded = under_way.pop()
        tally: Tally[str] = Tally(compared=len(mine))
        for counter, rows in zip(mine, before, strict=True):
            changed = count_rows(counter, using)
            changed.subtract(rows)
            entries = [deltas for noted, *deltas in recorded if noted is counter]
            unknown = {m for deltas in entries for m, delta in (deltas[0].items() if deltas else ()) if delta is None}
            tally["doubts"] += bool(unknown) or [] in entries
            if [] in entries:
                continue
            found: Tally[str] = Tally()
            for (deltas,) in entries:
                found.update({m: delta for m, delta in deltas.items() if m not in unknown})
            wrong = {m: [found[m], changed[m]] for m in {*found, *changed} - unknown if found[m] != changed[m]}
            if wrong:
                where = f"{Result.running}: {type(compiler).__name__}, {counter.name}"
                report(wrong=f"{where}, [recorded, true] by owner: {wrong}")
        report(tally=tally)
        return result

    return compare
