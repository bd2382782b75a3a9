"""Model fields."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.db.models import CharField, Field, ForeignKey, Model

from ..internals import BaseDatabaseWrapper


class ExactCharField(CharField):
    """A CharField that compares texts exactly. By default, ``Sale`` equals ``sale`` on MariaDB and MySQL."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        kind = super().db_type(connection)
        if connection.vendor != "mysql":
            return kind
        return f"{kind} CHARACTER SET utf8mb4 COLLATE {exact_collation(connection)}"


def exact_collation(connection: Any) -> str:
    """Return the name of a collation that takes no two texts for equal."""
    if connection.vendor == "mysql":
        return "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
    return "C" if connection.vendor == "postgresql" else "BINARY"


def is_converted_by_django(field: Field) -> bool:
    """Return whether the database stores what Django makes of a value. Another package's field may store "sale" for
    "Sale"."""
    kind: type = type(field)  # its hash is quick, unlike that of a field
    target: type = type(target_of(field))
    return _is_of_django(kind) and _is_of_django(target)


@lru_cache(maxsize=1000)
def _is_of_django(kind: type) -> bool:
    # The last two are placeholders in SQL, with a function of the database. Most fields have none.
    names = ("get_prep_value", "get_db_prep_value", "get_db_prep_save", "get_placeholder", "get_placeholder_sql")
    methods = (getattr(kind, name, None) for name in names)
    return all(method is None or method.__module__.startswith("django.") for method in methods)


def field_of(model: type[Model], name: str) -> Field:
    """Return a field of a model that is a column. FieldDoesNotExist if it is none."""
    field = model._meta.get_field(name)
    if not isinstance(field, Field):
        raise FieldDoesNotExist(f"{model._meta.label} has no column {name!r}.")
    return field


def target_of(field: Field) -> Field:
    """Return the field at the end of a chain of foreign keys, or a field that is no foreign key itself."""
    while isinstance(field, ForeignKey):
        field = field.target_field
    return field
