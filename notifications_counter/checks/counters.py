"""Checks of the declared counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.checks import Error
from django.db import OperationalError, connections, models
from django.db.models.expressions import RawSQL

from ..counters import Counter, all_counters
from ..internals import ExtraWhere, Query
from ..models import BaseCount
from ..models.fields import is_converted_by_django
from ..sql.target import other_fields, own_columns
from .registration import TAG, Messages, check, id_, mistake_in

UNSIGNED = models.PositiveBigIntegerField | models.PositiveIntegerField | models.PositiveSmallIntegerField

KEY_FIELDS = models.CharField | models.IntegerField | models.TextField | models.UUIDField
"""Fields whose equal values have the same text, unlike a decimal, 1 or 1.00."""

Mistakes = Iterator[tuple[str, str]]
"""Facts, each with a hint."""

VOLATILE = {"Now", "Random", "RandomUUID", "TransactionNow"}
"""Expressions whose value changes by itself."""


@check(TAG)
def check_counters() -> Messages:
    """Check that each counter is what its declaration says, sees every change of its counts, and can store them."""
    good: list[Counter] = []
    for counter in all_counters():
        if mistake := mistake_in(counter):
            yield Error(
                f"Counter {counter.name!r} refers to a model or field that does not exist.",
                hint=f"Correct its declaration: {mistake}",
                id=id_("E003"),
            )
        elif not _is_owner(counter):
            yield Error(
                f"The owner of counter {counter.name!r} is neither a foreign key nor several different columns.",
                hint='Name a foreign key, such as owner="user", or a tuple of different columns of any kind.',
                obj=counter.source,
                id=id_("E003"),
            )
        else:
            good.append(counter)
            for fact, hint in (*_mistakes_of_columns(counter), *_mistakes_of_keys(counter)):
                yield Error(fact, hint=hint, obj=counter.source, id=id_("E003"))
            for fact, hint in _mistakes_of_totals(counter):
                yield Error(fact, hint=hint, obj=counter.totals, id=id_("E004"))
            for what, hint in _hidden_changes(counter):
                yield Error(
                    f"Counter {counter.name!r} cannot see every change of its counts, because {what}.",
                    hint=hint,
                    obj=counter.source,
                    id=id_("E005"),
                )
    for totals, fact, hint in _mistakes_of_shared_totals(good):
        yield Error(fact, hint=hint, obj=totals, id=id_("E004"))


# ----------------------------------------------------------------- declaration
def _is_owner(counter: Counter) -> bool:
    if counter.has_several_columns:
        return len({*counter.owner_fields}) == max(len(counter.owner), 2)
    return isinstance(counter.owner_fields[0], models.ForeignKey)


def _mistakes_of_columns(counter: Counter) -> Mistakes:
    """Yield what is wrong if the table of the source lacks the columns of the owner or the sum."""
    for owner in counter.owner_fields:
        if counter.source._meta.proxy or owner.model is not counter.source:
            yield (
                f"Counter {counter.name!r} cannot use {counter.source._meta.label} as its source, because the field "
                f"{owner.name!r} is defined in {owner.model._meta.label}.",
                f"Use {owner.model._meta.label} as its source. Its proxies and child models are counted as well.",
            )
        if isinstance(owner, models.ForeignKey) and owner.target_field != owner.remote_field.model._meta.pk:
            yield (
                f"The owner of counter {counter.name!r}, {owner}, refers to {owner.target_field.name!r}, which is not "
                "the primary key.",
                "Use a foreign key without to_field. The totals are stored by primary key.",
            )
    field = counter.condition.summed
    kind = getattr(field, "output_field", field)  # of a generated column
    if field and not (field.concrete and field.model is counter.source and _is_plain(kind, models.IntegerField)):
        yield (
            f"Counter {counter.name!r} cannot sum {field}, a {type(field).__name__}.",
            f"Name an integer column that is defined in {counter.source._meta.label}. Store amounts of money as cents.",
        )


def _mistakes_of_keys(counter: Counter) -> Mistakes:
    """Yield what is wrong if owners cannot be told apart by their keys."""
    for field in counter.key_fields:
        if not _is_plain(field, KEY_FIELDS):
            yield (
                f"Counter {counter.name!r} cannot tell the owners of {counter.totals._meta.label} apart by "
                f"{field}, a {type(field).__name__}.",
                "Use an owner whose primary key, or whose columns, are integers, strings or UUIDs, and have the "
                "same value in Python and in the database. A field class may have its own to_python(), but not "
                "from_db_value(), get_prep_value(), get_placeholder() or get_placeholder_sql() (Django 6.1).",
            )


def _is_plain(field: Any, kinds: Any) -> bool:
    """Return whether a field is of these kinds, and has the same values in Python and in the database."""
    return isinstance(field, kinds) and not hasattr(field, "from_db_value") and is_converted_by_django(field)


# ---------------------------------------------------------------------- totals
def _mistakes_of_totals(counter: Counter) -> Mistakes:
    """Yield why the totals model cannot store the totals."""
    row = counter.totals()
    others = [f for f in other_fields(counter) if f.unique or (not f.null and f.pre_save(row, add=True) is None)]
    key = (
        f"CompositePrimaryKey{counter.owner!r}; or a BigAutoField, which does not run out of numbers, beside a "
        "UniqueConstraint over these columns, and no other. Each of them must have the type of the source's column of "
        "that name, without null=True; a foreign key needs"
        if counter.has_several_columns
        else f"a OneToOneField to the model that {counter.owner!r} refers to, with"
    )
    fits = _has_key(counter) if counter.has_several_columns else _is_one_to_one(counter)
    if not (fits and issubclass(counter.totals, BaseCount) and not others):
        names = ": " + ", ".join(field.name for field in others) if others else ""
        yield (
            f"{counter.totals._meta.label} cannot store the totals of counter {counter.name!r}.",
            f"It must inherit from BaseCount, and its primary key must be {key} on_delete=DO_NOTHING and "
            "db_constraint=False. The flusher inserts the rows, so every other field needs a default, and cannot be "
            f"unique{names}.",
        )
    small = models.BigIntegerField if counter.sum else models.IntegerField
    number: Any = counter.totals._meta.get_field(counter.field)
    if not isinstance(number, small) or isinstance(number, UNSIGNED) or not _starts_at_zero(number):
        yield (
            f"{number} cannot store every count of counter {counter.name!r}.",
            f"Use a signed {small.__name__} with default=0 and without null=True.",
        )


def _is_one_to_one(counter: Counter) -> bool:
    """Return whether the primary key of the totals is the owner, which may be deleted before its total."""
    key: Any = counter.totals._meta.pk
    return (
        isinstance(key, models.OneToOneField)
        and key.remote_field.model._meta.concrete_model
        is counter.owner_fields[0].remote_field.model._meta.concrete_model
        and key.remote_field.on_delete is models.DO_NOTHING
        and not key.db_constraint  # type: ignore[attr-defined]
    )


def _has_key(counter: Counter) -> bool:
    """Return whether the owner's columns in the totals can be its key: each is like its counterpart in the source, and
    only all of them together are unique."""
    options, names = counter.totals._meta, set(counter.owner)
    connection: Any = connections[counter.db]
    unique = [set(fields) for fields in options.unique_together]
    unique += [set(constraint.fields) for constraint in options.total_unique_constraints]
    if isinstance(options.pk, models.CompositePrimaryKey):
        unique.append({field.name for field in options.pk_fields})
    elif not isinstance(options.pk, models.BigAutoField):
        return False
    for source, total in zip(counter.owner_fields, counter.total_fields, strict=True):
        if isinstance(total, models.ForeignKey) and (
            total.db_constraint  # type: ignore[attr-defined]
            or total.remote_field.on_delete is not models.DO_NOTHING
            or not isinstance(source, models.ForeignKey)
            or source.target_field != total.target_field
        ):
            return False
        types: set[str | None] = set()
        with suppress(OperationalError):  # Django asks MariaDB for its version; other code reports the error
            types = {field.db_type(connection) for field in (source, total)}
        collations = {getattr(field, "db_collation", None) for field in (source, total)}
        if total.null or total.unique or len(types) > 1 or len(collations) > 1:
            return False
    return bool(unique) and all(columns == names for columns in unique)


def _starts_at_zero(field: Any) -> bool:
    """Return whether a field is zero in rows that another counter inserts."""
    default = field.get_default() if field.has_default() else field.db_default
    return not field.null and getattr(default, "value", default) == 0


def _mistakes_of_shared_totals(counters: Iterable[Counter]) -> Iterator[tuple[Any, str, str]]:
    """Yield why counters cannot store their totals in the same rows."""
    columns: dict[tuple[str, str], str] = {}
    first: dict[str, Counter] = {}
    for counter in counters:
        table = counter.totals._meta.db_table
        use = f"the field of counter {counter.name!r}"
        other = columns.setdefault((table, counter.field), use)
        if other is not use:
            yield (
                counter.totals,
                f"{counter.totals._meta.get_field(counter.field)} is both {other} and {use}.",
                "Give each counter a field of its own in the totals model.",
            )
        sharing = first.setdefault(table, counter)
        if counter.has_several_columns and counter.owner != sharing.owner:
            yield (
                counter.totals,
                f"Counters {sharing.name!r} and {counter.name!r} store their totals in the same rows, but name the "
                "columns of the owner in a different order.",
                f"Use owner={sharing.owner!r} for both, so that an owner has the same key in both.",
            )


# --------------------------------------------------------------------- changes
def _hidden_changes(counter: Counter) -> Mistakes:
    """Yield each dependency that no statement of the ORM on the source shows, and what to do instead."""
    for what, hint in _beyond_the_row(counter, list(counter.condition.expressions())):
        yield f"its condition depends on {what}", hint
    for field in own_columns(counter.source):
        if type(getattr(field.remote_field, "on_delete", None)).__name__ == "DatabaseOnDelete":  # of Django 6.1
            yield (
                f"the database itself changes {field} when a row is deleted",
                "Use the on_delete of the same name without DB_, so that Django does it.",
            )


def _beyond_the_row(counter: Counter, nodes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield each dependency of a condition that no change of its row shows, and what to do instead."""
    hint = "A counter sees only changes of the rows that it counts. Store what the condition needs in their columns."
    query = models.QuerySet(counter.source).filter(counter.q).query
    tables = [alias for alias, uses in query.alias_refcount.items() if uses]
    if len(tables) > 1 or any(isinstance(node, Query | models.Subquery) for node in nodes):
        yield "other rows", hint
    if any(VOLATILE.intersection(base.__name__ for base in type(node).__mro__) for node in nodes):
        yield "the time of the query, or on chance", hint
    if settings.USE_TZ and any(map(_depends_on_time_zone, nodes)):
        hint = "Compare the datetime with other datetimes, as in due__gte, or give the expression a tzinfo."
        yield "the active time zone", hint
    if any(isinstance(node, RawSQL | ExtraWhere) for node in nodes):
        yield "raw SQL, whose columns the app cannot tell", "Use Q objects and expressions."


def _depends_on_time_zone(node: Any) -> bool:
    """Return whether this is a part of a datetime that depends on the time zone, such as its day."""
    return (
        isinstance(node, models.Func)
        and getattr(node, "tzinfo", "") is None  # Extract and Trunc have one
        and isinstance(node.get_source_expressions()[0].output_field, models.DateTimeField)
    )
