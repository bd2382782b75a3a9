"""Digests declarations, so that processes of different releases notice that they count different rows."""

from __future__ import annotations

import re
from copy import copy
from typing import Any

from django.db.models import Field, GeneratedField, IntegerField, Q

from ..internals import Col, MigrationWriter, Query
from ..models.fields import target_of
from .condition import expressions_of
from .primary_keys import plain


def kind_of(field: Field) -> str:
    """Return the kind of a field's values. The size of an integer does not matter."""
    return "Integer" if isinstance(field, IntegerField) else field.get_internal_type()


def values_of_column(field: Field) -> str:
    """Return the properties of a column that decide its values. If a migration changes one, the database changes rows,
    and no statement of the ORM shows it: NULL becomes a default, numbers are rounded, generated columns recomputed."""
    about = [str(field.column), kind_of(target_of(field))]
    about += (str(getattr(field, name, None)) for name in ("null", "decimal_places", "db_collation"))
    if isinstance(field, GeneratedField):
        expression = field.expression  # type: ignore[attr-defined]
        nodes = expressions_of(expression.resolve_expression(Query(field.model)))
        about += sorted({values_of_column(node.target) for node in nodes if isinstance(node, Col)})
        about.append(as_code(expression))
    return " ".join(about)


def as_code(expression: object) -> str:
    """Return a text of a Q or an expression that is the same in every process."""
    try:
        return MigrationWriter.serialize(_without_enums(expression))[0]
    except ValueError:  # Django cannot serialize it
        return re.sub(r" at 0x[0-9a-f]+", "", repr(expression))


def _without_enums(condition: Any) -> Any:
    """Replace members of an Enum in a Q by their values. A migration would name them, although their values change."""
    if isinstance(condition, Q):
        found = copy(condition)
        found.children = [_without_enums(child) for child in condition.children]
        return found
    if type(condition) in (tuple, list, set, frozenset):
        return type(condition)(map(_without_enums, condition))
    return plain(condition)
