"""The owners of a counter: their columns, their primary keys, and their owner keys in Redis."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from operator import attrgetter

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db.models import Field, IntegerField, Model

from ..buffer.types import LIMIT, UNREADABLE
from ..exceptions import ConfigurationError
from ..internals import BaseDatabaseWrapper, Param
from ..models.fields import field_of, target_of
from .primary_keys import CompositeKey, First, Key, fits, plain, primary_key, values_of


class Owners:
    """The owners in a declaration: columns of the source, and of the totals. Each owner has a primary key, and an
    *owner key*, its text."""

    def __init__(self, name: str, source: str, owner: str | Sequence[str], totals: str, is_used: bool):
        self.name = name
        self.source_label = source
        self.owner = owner if isinstance(owner, str) else tuple(owner)
        self.totals_label = totals
        self.is_used = is_used
        for what, label in (("source", source), ("totals", totals)):
            if not isinstance(label, str) or label.count(".") != 1:
                raise ConfigurationError(
                    f'The {what} of counter {name!r} must be a string such as "app_label.Model", not {label!r:.200}.'
                )

    @cached_property
    def source(self) -> type[Model]:
        return self._model(self.source_label)

    @cached_property
    def totals(self) -> type[Model]:
        return self._model(self.totals_label)

    def _model(self, label: str) -> type[Model]:
        if not self.is_used:
            raise ConfigurationError(
                f"The counter {self.name!r} is not in use. Add its name to NOTIFICATIONS_COUNTER['COUNTERS']."
            )
        return apps.get_model(label)

    @cached_property
    def owner_fields(self) -> tuple[Field, ...]:
        """The columns of the source that identify the owner."""
        names = (self.owner,) if isinstance(self.owner, str) else self.owner
        return tuple(field_of(self.source, name) for name in names)

    @cached_property
    def owner_attnames(self) -> tuple[str, ...]:
        return tuple(field.attname for field in self.owner_fields)

    @cached_property
    def has_several_columns(self) -> bool:
        return not isinstance(self.owner, str)

    @cached_property
    def total_fields(self) -> tuple[Field, ...]:
        """The columns of the totals that identify the owner."""
        if isinstance(self.owner, str):
            return (self.totals._meta.pk,)
        return tuple(field_of(self.totals, name) for name in self.owner)

    @cached_property
    def key_fields(self) -> tuple[Field, ...]:
        """The fields whose values make up a primary key, at the end of any foreign keys."""
        return tuple(map(target_of, self.total_fields))

    @cached_property
    def has_integer_keys(self) -> bool:
        return not self.has_several_columns and isinstance(self.key_fields[0], IntegerField)

    # ------------------------------------------------------------------- keys
    def key(self, owner: object) -> Key:
        """Return the primary key of an owner, given as an instance or a key. An owner of several columns is given as a
        sequence of these, and has a CompositeKey. Raises ValueError for anything else."""
        if not self.has_several_columns:
            if self.has_integer_keys and type(owner) is int and -LIMIT <= owner < LIMIT:
                return owner
            return self._key(self.key_fields[0], owner)
        return CompositeKey(self._keys(self.key_fields, owner))

    def keys_of(self, owners: Sequence[object]) -> Sequence[Key]:
        """Return the primary keys of owners, as ``key`` does. Integers, or instances of one model, are taken all at
        once, because for one owner this would take as long as reading its count."""
        keys: Sequence[Key] = owners
        kinds = set(map(type, owners))
        if self.has_integer_keys and len(kinds) == 1:
            (kind,) = kinds
            if issubclass(kind, Model) and _column_of_key(kind) == _column(self.key_fields[0]):
                keys = list(map(attrgetter(kind._meta.pk.attname), owners))
                kinds = set(map(type, keys))
            with suppress(OverflowError):
                if kinds == {int} and array("q", keys):
                    return keys
        return list(map(self.key, owners))

    def first_of_key(self, owner: object) -> First:
        """Return the primary keys of all columns of an owner but the last, given as a sequence, or as one value."""
        if not self.has_several_columns:
            raise ValueError(f"Owners of counter {self.name!r} have one column, {self.owner}. Use count() or counts().")
        return self._keys(self.key_fields[:-1], owner if isinstance(owner, tuple | list) else (owner,))

    def _keys(self, fields: Sequence[Field], owner: object) -> First:
        if not isinstance(owner, tuple | list) or len(owner) != len(fields):
            names = ", ".join(self.owner[: len(fields)])
            raise ValueError(
                f"Counter {self.name!r} needs a value for each of these here: {names}; not {owner!r:.200}."
            )
        return tuple(map(self._key, fields, owner))

    def _key(self, field: Field, owner: object) -> Key:
        if isinstance(owner, Model) and _column_of_key(owner._meta.model) != _column(field):
            label = field.model._meta.label if field.primary_key else str(field)
            raise ValueError(
                f"Counter {self.name!r} counts for {label}, not for {owner._meta.label}. Pass an instance of "
                f"{label}, or its primary key."
            )
        key = owner.pk if type(owner) is not int and hasattr(owner, "pk") else owner
        if key is None:
            raise ValueError(
                f"Counter {self.name!r} needs an owner with a primary key. Save the object first. An anonymous user "
                "has no primary key."
            )
        return primary_key(field, key)

    def owner_keys(self, columns: Sequence[Sequence[object]]) -> list[str | None]:
        """Return the owner keys of what a statement or the database has in the owner's columns, column by column; None
        where there is no owner."""
        if self.has_integer_keys and set(map(type, columns[0])) == {int}:  # only faster
            return list(map(str, columns[0]))
        found: list[str | None] = []
        for values in zip(*columns, strict=True):
            try:
                key = self.key_of_row(map(plain, values))
            except ValidationError:
                key = None
            found.append(None if None in values_of(key) else str(key))
        return found

    def key_of_row(self, values: Iterable[object]) -> Key:
        """Return the primary key of these values of the columns, as they are in the database or in an owner key."""
        if self.has_integer_keys:
            (key,) = values
            return key if type(key) is int else self.key_fields[0].to_python(key)
        found = [field.to_python(value) for field, value in zip(self.key_fields, values, strict=True)]
        return CompositeKey(found) if self.has_several_columns else found[0]

    def parse(self, owner_key: str) -> Key:
        """Return the primary key whose ``str()`` is this owner key."""
        return self.key_of_row(json.loads(owner_key) if self.has_several_columns else (owner_key,))

    def valid_key(self, owner_key: str) -> Key:
        """Return the primary key of an owner key that may be anyone's text. Raises ValidationError if there is none.

        As in ``save()``, the field's validators do not run.
        """
        try:
            key = self.parse(owner_key)
        except UNREADABLE:
            key = None
        if str(key) != owner_key or not all(map(fits, self.key_fields, values_of(key))):
            raise ValidationError(f"{owner_key!r} is not a primary key.")
        return key

    def db_columns(self, keys: Sequence[Key], connection: BaseDatabaseWrapper) -> list[list[Param]]:
        """Return primary keys column by column, as the driver takes them. They are passed as prepared, because Django
        refuses 0 on MySQL otherwise."""
        columns = zip(*keys, strict=True) if self.has_several_columns else [keys]
        return [
            list(column)
            if isinstance(field, IntegerField)
            else [field.get_db_prep_value(field.get_prep_value(value), connection, prepared=True) for value in column]
            for field, column in zip(self.key_fields, columns, strict=True)
        ]


@lru_cache(maxsize=1000)
def _column_of_key(model: type[Model]) -> tuple[str, str | None]:
    """Return the table and column of a model's primary keys. A child model or a profile shares the keys of its parent,
    and a historical model the keys of the current model."""
    return _column(target_of(model._meta.pk))


def _column(field: Field) -> tuple[str, str | None]:
    return field.model._meta.db_table, field.column
