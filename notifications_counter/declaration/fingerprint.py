"""A digest of a declaration, by which processes of different releases notice that they count different rows."""

from __future__ import annotations

import re
from copy import copy
from hashlib import sha256
from typing import Any

from django.db.models import Field, GeneratedField, IntegerField, Q

from ..internals import Col, MigrationWriter, Query
from .condition import expressions_of
from .owners import target_of
from .primary_keys import plain


def fingerprint_of(counter: Any) -> str:
    """Return a digest of what a counter counts, for whom, and where its totals are. It includes neither the counter's
    name, nor SQL, which differs between versions of Django."""
    source, totals = counter.source._meta, counter.totals._meta
    fields = (*counter.owner_fields, totals.get_field(counter.field), totals.get_field(counter.batch_field))
    about = [source.db_table, totals.db_table, *(field.column for field in fields), _as_code(counter.q)]
    about += [f"sum {counter.condition.summed.column}"] if counter.sum else []
    about += map(kind_of, counter.key_fields)
    about += sorted(map(_values_of_column, counter.columns))
    return sha256("\0".join(about).encode()).hexdigest()[:16]


def kind_of(field: Field) -> str:
    """Return what kind of values a field has. The size of an integer does not matter."""
    return "Integer" if isinstance(field, IntegerField) else field.get_internal_type()


def _values_of_column(field: Any) -> str:
    """Return what decides which values a column has. A migration that changes it has the database change rows: NULL
    becomes a default, a number is rounded, a generated column is computed anew. No statement of the ORM shows that."""
    about = [field.column, kind_of(target_of(field))]
    about += (str(getattr(field, name, None)) for name in ("null", "decimal_places", "db_collation"))
    if isinstance(field, GeneratedField):
        expression = field.expression  # type: ignore[attr-defined]
        nodes = expressions_of(expression.resolve_expression(Query(field.model)))
        about += sorted({_values_of_column(node.target) for node in nodes if isinstance(node, Col)})
        about.append(_as_code(expression))
    return " ".join(about)


def _as_code(expression: Any) -> str:
    """Return a Q or an expression as text that is the same in every process."""
    try:
        return MigrationWriter.serialize(_without_enums(expression))[0]
    except ValueError:  # Django cannot serialize it
        return re.sub(r" at 0x[0-9a-f]+", "", repr(expression))


def _without_enums(condition: Any) -> Any:
    """Return a Q with the values of members of an Enum. A migration would have their names, whose values may change."""
    if isinstance(condition, Q):
        found = copy(condition)
        found.children = [_without_enums(child) for child in condition.children]
        return found
    if type(condition) in (tuple, list, set, frozenset):
        return type(condition)(map(_without_enums, condition))
    return plain(condition)
