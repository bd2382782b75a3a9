"""Checks of the declared counters: E003 the declaration, E004 the totals, E005 what a count depends on, W007 what it
costs, W010 the values in its condition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from types import UnionType

from django.conf import settings
from django.core.checks import register
from django.core.exceptions import FieldDoesNotExist, FieldError, ValidationError
from django.db import OperationalError, connections, models

from ..counters import Counter, all_counters
from ..declaration.condition import OF_OTHER_ROWS, facts_of_where, is_stable
from ..internals import Col, Exact, In
from ..models import BaseCount
from ..models.fields import field_of, is_converted_by_django
from .messages import TAG, Messages, error, warning

UNSIGNED = models.PositiveBigIntegerField | models.PositiveIntegerField | models.PositiveSmallIntegerField

UNBOUND = "on_delete=DO_NOTHING and db_constraint=False"
"""What lets a row of totals outlive what its foreign key refers to."""

KEY_FIELDS = models.CharField | models.IntegerField | models.TextField | models.UUIDField
"""Fields whose equal values have the same text, unlike a decimal, 1 or 1.00."""


def mistake_in(counter: Counter) -> str:
    """Return what is wrong with a declaration if a model or field does not exist, or a value does not fit its column;
    else an empty string."""
    try:
        totals = counter.totals._meta
        _ = totals.get_field(counter.field), counter.owner_fields, counter.total_fields, counter.condition.fields
    except (LookupError, FieldDoesNotExist, FieldError, TypeError, ValueError, ValidationError) as mistake:
        return " ".join(mistake.messages) if isinstance(mistake, ValidationError) else str(mistake)
    return ""


def sound_counters() -> list[Counter]:
    """Return the counters whose models and fields exist. A check reports the others."""
    return [counter for counter in all_counters() if not mistake_in(counter)]


@register(TAG)
def check_counters(**_: object) -> Messages:
    """Check that each counter is what its declaration says, sees every change of its counts, and can store them."""
    for counter in all_counters():
        if mistake := mistake_in(counter):
            yield error(
                "E003",
                f"Counter {counter.name!r} refers to a model or field that does not exist, or to a wrong value.",
                f"Correct its declaration: {mistake}",
            )
        elif not _is_owner(counter):
            yield error(
                "E003",
                f"The owner of counter {counter.name!r} is neither a foreign key nor several different columns.",
                'Name a foreign key, such as owner="user", or a tuple of different columns of any kind.',
                counter.source,
            )
        else:
            yield from check_columns(counter)
            yield from check_keys(counter)
            yield from check_totals(counter)
            yield from check_changes(counter)
            yield from check_choices(counter)


# ----------------------------------------------------------------- declaration
def _is_owner(counter: Counter) -> bool:
    if counter.has_several_columns:
        return len({*counter.owner_fields}) == max(len(counter.owner), 2)
    return isinstance(counter.owner_fields[0], models.ForeignKey)


def check_columns(counter: Counter) -> Messages:
    """Check that the owner and the sum are columns of the source's own table, with values that can be counted."""
    source = counter.source
    for owner in counter.owner_fields:
        if source._meta.proxy or owner.model is not source:
            yield error(
                "E003",
                f"Counter {counter.name!r} cannot use {source._meta.label} as its source, because the field "
                f"{owner.name!r} is defined in {owner.model._meta.label}.",
                f"Use {owner.model._meta.label} as its source. Its proxies and child models are counted as well.",
                source,
            )
        if isinstance(owner, models.ForeignKey) and owner.target_field != owner.remote_field.model._meta.pk:
            yield error(
                "E003",
                f"The owner of counter {counter.name!r}, {owner}, refers to {owner.target_field.name!r}, which is not "
                "the primary key.",
                "Use a foreign key without to_field. The totals are stored by primary key.",
                source,
            )
    field = counter.condition.summed
    kind = getattr(field, "output_field", field)  # of a generated column
    if field and not (field.concrete and field.model is source and _has_same_values(kind, models.IntegerField)):
        yield error(
            "E003",
            f"Counter {counter.name!r} cannot sum {field}, a {type(field).__name__}.",
            f"Name an integer column that is defined in {source._meta.label}. Store amounts of money as cents.",
            source,
        )


def check_keys(counter: Counter) -> Messages:
    """Check that owners can be told apart by their keys."""
    for field in counter.pk_fields:
        if not _has_same_values(field, KEY_FIELDS):
            yield error(
                "E003",
                f"Counter {counter.name!r} cannot tell the owners of {counter.totals._meta.label} apart by {field}, a "
                f"{type(field).__name__}.",
                "Use an owner whose primary key, or whose columns, are integers, strings or UUIDs, and have the same "
                "value in Python and in the database. A field class may have its own to_python(), but not "
                "from_db_value(), get_prep_value(), get_placeholder() or get_placeholder_sql() (Django 6.1).",
                counter.source,
            )


def _has_same_values(field: object, kinds: type | UnionType) -> bool:
    """Return whether a field is of these kinds, and has the same values in Python and in the database."""
    if not isinstance(field, models.Field) or hasattr(field, "from_db_value"):
        return False
    return isinstance(field, kinds) and is_converted_by_django(field)


# ---------------------------------------------------------------------- totals
def check_totals(counter: Counter) -> Messages:
    """Check that the totals model can store the totals."""
    totals = counter.totals
    for mistake, hint in _mistakes_in_totals(counter):
        fact = f"{totals._meta.label} cannot store the totals of counter {counter.name!r}: {mistake}."
        yield error("E004", fact, hint, totals)
    number = field_of(totals, counter.field)
    starts_at_zero = not number.null and getattr(number.db_default, "value", number.db_default) == 0
    wanted = models.BigIntegerField if counter.sum else models.IntegerField
    if not isinstance(number, wanted) or isinstance(number, UNSIGNED) or not starts_at_zero:
        yield error(
            "E004",
            f"{number} cannot store every count of counter {counter.name!r}.",
            f"Use a signed {wanted.__name__} with db_default=0 and without null=True.",
            totals,
        )


def _mistakes_in_totals(counter: Counter) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the totals model, and what to do."""
    totals = counter.totals
    key = totals._meta.pk
    keys = dict.fromkeys([key, *counter.total_fields])
    if not issubclass(totals, BaseCount):
        yield "it is no BaseCount", "Let it inherit from BaseCount."
    for field in keys:
        if isinstance(field, models.ForeignKey) and not _is_unbound(field):
            yield f"its {field.name} has a cascade or a constraint", f"Give that field {UNBOUND}."
    if any(isinstance(constraint, models.CheckConstraint) for constraint in totals._meta.constraints):
        yield "it has a check constraint, which could refuse a total", "Remove the constraint."
    if counter.has_several_columns:
        for source, total in zip(counter.owner_fields, counter.total_fields, strict=True):
            if not _are_alike(source, total, counter.db):
                yield (
                    f"its {total.name} is not like that of {counter.source._meta.label}",
                    "Give it the same type and collation, without null=True and unique=True.",
                )
        if not _has_key(counter):
            yield (
                "its key does not fit the owner",
                f"Use CompositePrimaryKey{counter.owner!r}; or a BigAutoField, which does not run out of numbers, "
                "beside a UniqueConstraint over these columns, and no other.",
            )
    elif not _is_one_to_one(counter):
        yield (
            f"its primary key, {key.name}, is not the owner",
            f"Use a OneToOneField to the model that {counter.owner!r} refers to, with primary_key=True, {UNBOUND}.",
        )
        return  # the others depend on it
    known = {counter.field, "updated_at", *(field.name for field in keys)}
    for field in columns_of(totals):
        if field.name not in known and (field.unique or not (field.null or field.has_db_default())):
            yield (
                f"a flusher, perhaps of an older release, inserts rows without its {field.name}",
                "Give that field db_default or null=True. It cannot be unique.",
            )


def columns_of(model: type[models.Model]) -> list[models.Field]:
    """Return the fields that are columns of the model's own table, without generated ones."""
    fields = [f for f in model._meta.get_fields(include_parents=False) if isinstance(f, models.Field) and f.concrete]
    return [field for field in fields if not isinstance(field, models.GeneratedField)]


def _is_one_to_one(counter: Counter) -> bool:
    """Return whether the primary key of the totals is the owner."""
    key, owner = counter.totals._meta.pk, counter.owner_fields[0]
    return (
        isinstance(key, models.OneToOneField)
        and isinstance(owner, models.ForeignKey)
        and key.remote_field.model._meta.concrete_model is owner.remote_field.model._meta.concrete_model
    )


def _is_unbound(key: models.ForeignKey) -> bool:
    """Return whether a row may outlive what its foreign key refers to, such as an owner that is deleted."""
    return key.remote_field.on_delete is models.DO_NOTHING and not getattr(key, "db_constraint", True)


def _has_key(counter: Counter) -> bool:
    """Return whether all the owner's columns in the totals together are its key, and no others are unique."""
    options, names = counter.totals._meta, set(counter.owner)
    unique = [set(fields) for fields in options.unique_together]
    unique += [set(constraint.fields) for constraint in options.total_unique_constraints]
    if isinstance(options.pk, models.CompositePrimaryKey):
        unique.append({field.name for field in options.pk_fields})
    elif not isinstance(options.pk, models.BigAutoField):
        return False
    return bool(unique) and all(columns == names for columns in unique)


def _are_alike(source: models.Field, total: models.Field, using: str) -> bool:
    """Return whether a column of the totals can hold what is in its counterpart in the source."""
    if isinstance(total, models.ForeignKey) and not (
        isinstance(source, models.ForeignKey) and source.target_field == total.target_field
    ):
        return False
    types: set[str | None] = set()
    with suppress(OperationalError):  # Django asks MariaDB for its version; other code reports the error
        types = {field.db_type(connections[using]) for field in (source, total)}
    collations = {getattr(field, "db_collation", None) for field in (source, total)}
    return not (total.null or total.unique) and len(types) < 2 and len(collations) == 1


@register(TAG)
def check_shared_totals(**_: object) -> Messages:
    """Check that counters that store their totals in the same rows have different fields, and the same keys."""
    columns: dict[tuple[str, str], Counter] = {}
    first: dict[str, Counter] = {}
    for counter in sound_counters():
        table = counter.totals._meta.db_table
        if (other := columns.setdefault((table, counter.field), counter)) is not counter:
            yield error(
                "E004",
                f"{counter.totals._meta.get_field(counter.field)} is the field of both counter {other.name!r} and "
                f"counter {counter.name!r}.",
                "Give each counter a field of its own in the totals model.",
                counter.totals,
            )
        sharing = first.setdefault(table, counter)
        if counter.has_several_columns and counter.owner != sharing.owner:
            yield error(
                "E004",
                f"Counters {sharing.name!r} and {counter.name!r} store their totals in the same rows, but name the "
                "columns of the owner in a different order.",
                f"Use owner={sharing.owner!r} for both, so that an owner has the same key in both.",
                counter.totals,
            )


# --------------------------------------------------------------------- changes
def check_changes(counter: Counter) -> Messages:
    """Check that a count depends on nothing that no statement of the ORM on the source shows."""
    nodes, hint = list(counter.condition.expressions()), "Store what the condition needs in columns of the row."
    query = models.QuerySet(counter.source).filter(counter.q).query
    tables = [alias for alias, uses in query.alias_refcount.items() if uses]
    hidden: list[tuple[str, str]] = []
    if len(tables) > 1 or any(isinstance(node, OF_OTHER_ROWS) for node in nodes):
        hidden.append(("its condition depends on other rows, or on raw SQL", hint))
    elif changing := sorted({type(node).__name__ for node in nodes if not is_stable(node)}):
        hint = "Use columns, values, and Django's own lookups and functions, but neither time nor chance. What else it "
        hint += "needs, a GeneratedField can store."
        hidden.append((f"{', '.join(changing)} in its condition may change by itself, as far as the app knows", hint))
    if any(map(_is_of_this_start, nodes)):
        hint = "Store what the condition needs in a column, such as `expired`, and update it."
        hidden.append(
            ("its condition contains the time at which a process started, which differs between processes", hint)
        )
    if settings.USE_TZ and any(map(_depends_on_time_zone, nodes)):
        hint = "Compare the datetime with other datetimes, as in due__gte, or give the expression a tzinfo."
        hidden.append(("its condition depends on the active time zone", hint))
    for field in columns_of(counter.source):
        if type(getattr(field.remote_field, "on_delete", None)).__name__ == "DatabaseOnDelete":  # of Django 6.1
            hint = "Use the on_delete of the same name without DB_, so that Django does it."
            hidden.append((f"the database itself changes {field} when a row is deleted", hint))
    for reason, hint in hidden:
        fact = f"Counter {counter.name!r} cannot see every change of its counts, because {reason}."
        yield error("E005", fact, hint, counter.source)
    if not hidden and not facts_of_where(counter.condition.where)[1]:
        yield warning(
            "W007",
            f"The first read of counter {counter.name!r} after each write runs a COUNT(*), because only the database "
            "knows which rows count.",
            "A condition is fast if it compares columns, but no generated ones, with values by =, IN, NOT or IS NULL, "
            "and combines that with AND. If writes are few, silence this check.",
            counter.source,
        )


def check_choices(counter: Counter) -> Messages:
    """Check that a condition names only values that are among the choices of their columns."""
    for node in counter.condition.expressions():
        if (
            isinstance(node, Exact | In)
            and isinstance(node.lhs, Col)
            and (choices := dict(node.lhs.target.flatchoices))
        ):
            values = node.rhs if isinstance(node.rhs, list | tuple) else [node.rhs]
            known = {*choices, "", None}
            if unknown := [
                value for value in values if not hasattr(value, "resolve_expression") and value not in known
            ]:
                yield warning(
                    "W010",
                    f"The condition of counter {counter.name!r} names {', '.join(map(repr, unknown))}, but the choices "
                    f"of {node.lhs.target} are: {', '.join(map(repr, choices))}.",
                    "Correct it; or silence this check, if rows have it all the same. __in takes a list.",
                    counter.source,
                )


def _is_of_this_start(node: object) -> bool:
    """Return whether this has a datetime that was computed from ``timezone.now()``: only such a one has microseconds,
    unless it ends a day."""
    value = getattr(node, "rhs", getattr(node, "value", None))
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(each, datetime) and each.microsecond not in (0, 999_999) for each in values)


def _depends_on_time_zone(node: object) -> bool:
    """Return whether this is a part of a datetime that depends on the time zone, such as its day."""
    return (
        isinstance(node, models.Func)
        and getattr(node, "tzinfo", "") is None  # Extract and Trunc have one
        and isinstance(node.get_source_expressions()[0].output_field, models.DateTimeField)
    )
