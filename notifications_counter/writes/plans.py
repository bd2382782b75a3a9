"""How a statement is executed so that its change is known.

It may say itself whose counts it changes. If it doesn't, its rows may: read back, returned or locked. Then these owners
get deltas, or are in doubt, so that their next reads count rows. If not even the owners are known, everyone is.
"""

from __future__ import annotations

import math
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, NamedTuple

from django.db.models import Model

from ..declaration import Declaration
from ..reports import report
from .change import Change, add, unknown_for, unknown_for_everyone, zeros
from .facts import UNNAMED, Effect, added_by, effects_of
from .rows import Row, Sums, columns_of, is_repeatable, lists_pks, lock_pks, lock_rows, name_rows, sums_of
from .statements import Counters, Statement

TELL_SECONDS = 60.0
"""Seconds until another statement on a model is logged that puts everyone in doubt."""

_told: dict[str, float] = {}
"""When the last one was logged, by model."""

Effects = dict[Declaration, Effect]
Outcome = tuple[Any, Change]
"""The result of a statement, and its change."""


class Plan(NamedTuple):
    """How to execute a statement so that its change is known.

    ``execute``   executes it: one of the functions below
    ``counters``  those whose counts may change
    ``owners``    whose counts, with deltas of 0; None if only the database can tell, so that it takes a transaction
    """

    execute: Callable[[], Outcome]
    counters: Iterable[Declaration]
    owners: Change | None = None


def plan_of(statement: Statement) -> Plan:
    """Return the first plan that fits."""
    counters = statement.counters
    if lack_columns(counters, statement.model):
        return Plan(partial(not_said, statement, counters), counters)
    if statement.is_insert:
        if (added := added_by(statement)) is not None:
            return Plan(partial(said_by_instances, statement, added), added, zeros(added))
        return Plan(partial(read_back if can_read_back(statement) else not_said, statement, counters), counters)
    effects = effects_of(statement)
    if all(effect.before.names_owner and effect.after.names_owner for effect in effects.values()):
        owners = {counter: effect.owner_keys for counter, effect in effects.items()}
        return Plan(partial(said_by_clauses, statement, effects), effects, zeros(owners))
    return Plan(partial(returned if can_return(statement, effects) else locked, statement, effects), effects)


@lru_cache(maxsize=100)
def lack_columns(counters: Counters, model: type[Model]) -> bool:
    """Return whether this model of the table lacks a column of any counter, as one of an older migration may."""
    return not all(counter.has_columns(model) for counter in counters)


def not_said(statement: Statement, counters: Iterable[Declaration]) -> Outcome:
    """Nothing tells whose counts change."""
    result, number, _ = statement.execute()
    if number == 0 and not statement.is_insert:  # of an INSERT, a trigger may put rows elsewhere
        return result, {}
    return result, doubt_everyone(statement, counters)


def doubt_everyone(statement: Statement, counters: Iterable[Declaration]) -> Change:
    """Return that the statement may have changed the counts of everyone. That is dear, so it is logged, but not for
    each of a thousand statements."""
    label, now = statement.model._meta.label, time.monotonic()
    if now - _told.get(label, -math.inf) > TELL_SECONDS:
        _told[label] = now
        report("everyone", model=label)
    return unknown_for_everyone(counters)


# ------------------------------------------------------------------------- INSERT
def said_by_instances(statement: Statement, added: Change) -> Outcome:
    """The instances of an INSERT say whose the rows are, and what they add."""
    query = statement.query
    result, number, _ = statement.execute()
    if number != len(query.objs) or query.on_conflict is not None:  # a conflict, a trigger or a rule may skip rows
        return result, {counter: unknown_for(deltas) for counter, deltas in added.items()}
    return result, added


def can_read_back(statement: Statement) -> bool:
    """Return whether the rows of an INSERT can be found again, and an upsert has not taken them over from others. A row
    that was in conflict by other columns has a primary key of its own."""
    query = statement.query
    options = query.model._meta
    updated = {field.attname for field in query.update_fields}
    takes_over = updated and any(counter.moves(updated) for counter in statement.counters)
    is_told = options.pk in (statement.fields or ()) or {*query.unique_fields} <= {*options.pk_fields}
    return statement.is_stock and not takes_over and is_told


def read_back(statement: Statement, counters: Counters) -> Outcome:
    """The rows of an INSERT are read back by their primary keys."""
    query = statement.query
    fields = list(statement.fields or ())
    pk = statement.model._meta.pk
    result, _, _ = statement.execute()
    if pk in fields:
        pks = [row[fields.index(pk)] for row in result or () if row is not None]
    else:
        pks = [getattr(instance, pk.attname, None) for instance in query.objs]
    found = lock_pks(query.model, statement.connection, pks, counters)
    if found.total() != len(pks):  # one is unknown, an expression, or stored in another form
        return result, doubt_everyone(statement, counters)
    change: Change = {}
    for counter, sums in sums_of(counters, found).items():
        change[counter] = unknown_for(sums)
        if query.on_conflict is None:  # otherwise, some were there before
            change[counter] = {o: total for o, (total, _) in sums.items() if o is not None}
    return result, change


# -------------------------------------------------------------- UPDATE and DELETE
def said_by_clauses(statement: Statement, effects: Effects) -> Outcome:
    """WHERE and SET say whose the rows are, and the number of rows tells what they add."""
    result, number, _ = statement.execute()
    change: Change = {}
    for counter, effect in effects.items() if number else ():
        before, after, _ = effect
        change[counter] = unknown_for(effect.owner_keys)
        if number < math.inf and before.value is not None and after.value is not None:
            owner_key = None if before.owner_key is UNNAMED else before.owner_key  # those whom it doesn't name add 0
            change[counter] = effect.deltas({owner_key: (number * before.value, number)})
    return result, change


def can_return(statement: Statement, effects: Effects) -> bool:
    """Return whether PostgreSQL can return whose rows have changed. An UPDATE returns rows as they are after it,
    without their owners before. Of a few rows by primary keys, locking them says more."""
    if not statement.is_stock or statement.connection.vendor != "postgresql":
        return False
    says_more = lists_pks(statement.query) and any(effect.before.value is None for effect in effects.values())
    return statement.is_delete or not (statement.fields or says_more or any(e.moves for e in effects.values()))


def returned(statement: Statement, effects: Effects) -> Outcome:
    """PostgreSQL returns the rows: of a DELETE as they were, of an UPDATE as they are."""
    columns = columns_of(tuple(effects), statement.connection.alias, statement.model)
    result, number, found = statement.execute(columns)
    if found.total() != number:  # other code has changed the statement, too
        return result, doubt_everyone(statement, effects)
    change: Change = {}
    for counter, sums in sums_of(effects, found).items():
        effect = effects[counter]
        if statement.is_delete:
            change[counter] = effect.deltas(sums)
        elif (value := effect.before.value) is not None:
            change[counter] = {o: total - rows * value for o, (total, rows) in sums.items() if o is not None}
        else:
            change[counter] = unknown_for(sums)
    return result, change


def locked(statement: Statement, effects: Effects) -> Outcome:
    """The rows are locked first, to see whose they are and whether they count. They stay those that the statement
    selects, by their primary keys if necessary."""
    query, connection, counters = statement.query, statement.connection, tuple(effects)
    moving = [effect for effect in effects.values() if effect.moves]
    says_whose = all(effect.after.names_owner for effect in moving)
    is_known = says_whose and all(effect.before.names_owner for effect in moving)  # if a row appears, too
    is_fixed = is_repeatable(query) and (lists_pks(query) or is_known)
    is_named = not is_fixed and statement.is_stock and name_rows(query, connection)
    if not (is_fixed or is_named or (is_repeatable(query) and says_whose)):
        return not_said(statement, effects)
    rows = lock_rows(query, connection, counters)
    result, number, _ = statement.execute()
    if not says_whose or number > rows.total():
        return result, seen_afterwards(statement, effects, rows, number)
    change: Change = {}
    for counter, sums in sums_of(counters, rows).items():
        effect = effects[counter]
        if effect.after.value is not None and number == rows.total():
            change[counter] = effect.deltas(sums)  # nobody else changes locked rows
        else:
            change[counter] = unknown_for([*sums, *effect.owner_keys])
    return result, change


def seen_afterwards(statement: Statement, effects: Effects, before: Tally[Row], number: float) -> Change:
    """The statement doesn't say whose its rows become, as ``bulk_update()``, or others have appeared since rows were
    locked. By primary keys, it still selects them, unless it changes these."""
    query, counters = statement.query, tuple(effects)
    keys = {*statement.model._meta.pk_fields}
    stay = lists_pks(query) and not statement.is_delete and keys.isdisjoint(field for field, *_ in query.values)
    after = lock_rows(query, statement.connection, counters) if stay else Tally[Row]()
    if before.total() == number == after.total():
        return difference(sums_of(counters, before), sums_of(counters, after))
    has_seen_before, has_seen_after = number <= before.total(), after.total() >= max(before.total(), number)
    change: Change = {}
    for counter, sums in sums_of(counters, before + after).items():
        effect = effects[counter]
        has_seen = not effect.moves and (has_seen_before or has_seen_after)
        knows_before = effect.before.names_owner or has_seen_before or has_seen
        knows_after = effect.after.names_owner or has_seen_after or has_seen
        if knows_before and knows_after:
            change[counter] = unknown_for([*sums, *effect.owner_keys])
        else:
            change |= doubt_everyone(statement, [counter])
    return change


def difference(before: dict[Declaration, Sums], after: dict[Declaration, Sums]) -> Change:
    """Return what the same rows add now, less what they added before."""
    change: Change = {}
    for counter, sums in after.items():
        deltas = change[counter] = {}
        for sign, each in ((1, sums), (-1, before[counter])):
            for owner_key, (total, _) in each.items():
                if owner_key is not None:
                    add(deltas, owner_key, sign * total)
    return change
