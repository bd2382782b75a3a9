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

from ..buffer.types import EVERYONE
from ..exceptions import ConfigurationError
from ..internals import BaseDatabaseWrapper, Param
from ..models.fields import field_of, target_of
from ..redis.replies import INTEGER_LIMIT, UNREADABLE
from .primary_keys import CompositePk, First, Pk, fits, plain, primary_key, values_of


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
        self.forbid_unused()
        return apps.get_model(label)

    def forbid_unused(self) -> None:
        """Raise ConfigurationError if this is a built-in counter that the site does not use."""
        if not self.is_used:
            raise ConfigurationError(
                f"The counter {self.name!r} is not in use. Add its name to NOTIFICATIONS_COUNTER['COUNTERS']."
            )

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
    def pk_fields(self) -> tuple[Field, ...]:
        """The fields whose values make up a primary key, at the end of any foreign keys."""
        return tuple(map(target_of, self.total_fields))

    @cached_property
    def has_integer_pks(self) -> bool:
        return not self.has_several_columns and isinstance(self.pk_fields[0], IntegerField)  # only faster

    # ----------------------------------------------------------- primary keys
    def pk_of(self, owner: object) -> Pk:
        """Return the primary key of an owner, given as an instance or a primary key. An owner of several columns is
        given as a sequence of these, and has a CompositePk. Raises ValueError for anything else."""
        if not self.has_several_columns:
            if self.has_integer_pks and type(owner) is int and -INTEGER_LIMIT <= owner < INTEGER_LIMIT:  # only faster
                return owner
            return self._pk(self.pk_fields[0], owner)
        return CompositePk(self._pks(self.pk_fields, owner))

    def pks_of(self, owners: Sequence[object]) -> Sequence[Pk]:
        """Return the primary keys of owners, as ``pk_of`` does. Integers, or instances of one model, are taken all at
        once, because for one owner this would take as long as reading its count."""
        pks: Sequence[Pk] = owners
        kinds = set(map(type, owners))
        if self.has_integer_pks and len(kinds) == 1:
            (kind,) = kinds
            if issubclass(kind, Model) and _column_of_pk(kind) == _column(self.pk_fields[0]):
                pks = list(map(attrgetter(kind._meta.pk.attname), owners))  # only faster
                kinds = set(map(type, pks))  # only faster
            with suppress(OverflowError):
                if kinds == {int} and array("q", pks):  # only faster
                    return pks
        return list(map(self.pk_of, owners))

    def first_of_pk(self, owner: object) -> First:
        """Return the primary keys of all columns of an owner but the last, given as a sequence, or as one value."""
        if not self.has_several_columns:
            raise ValueError(f"Owners of counter {self.name!r} have one column, {self.owner}. Use count() or counts().")
        return self._pks(self.pk_fields[:-1], owner if isinstance(owner, tuple | list) else (owner,))

    def _pks(self, fields: Sequence[Field], owner: object) -> First:
        if not isinstance(owner, tuple | list) or len(owner) != len(fields):
            names = ", ".join(self.owner[: len(fields)])
            raise ValueError(f"Counter {self.name!r} takes a tuple ({names}) here, not {owner!r:.200}.")
        return tuple(map(self._pk, fields, owner))

    def _pk(self, field: Field, owner: object) -> Pk:
        if isinstance(owner, Model) and _column_of_pk(owner._meta.model) != _column(field):
            label = field.model._meta.label if field.primary_key else str(field)
            raise ValueError(
                f"Counter {self.name!r} counts for {label}, not for {owner._meta.label}. Pass an instance of "
                f"{label}, or its primary key."
            )
        pk = owner.pk if type(owner) is not int and hasattr(owner, "pk") else owner
        if pk is None:
            raise ValueError(
                f"Counter {self.name!r} needs an owner with a primary key, unlike {owner!r:.200}. Leave out None and "
                "anonymous users, and save an object first."
            )
        return primary_key(field, pk)

    def owner_keys(self, columns: Sequence[Sequence[object]]) -> list[str | None]:
        """Return the owner keys of what a statement or the database has in the owner's columns, column by column; None
        where there is no owner, or one whose key is EVERYONE."""
        if self.has_integer_pks and set(map(type, columns[0])) == {int}:  # only faster
            return list(map(str, columns[0]))
        found: list[str | None] = []
        for values in zip(*columns, strict=True):
            try:
                pk = self.pk_of_row(map(plain, values))
            except ValidationError:
                pk = None
            found.append(None if None in values_of(pk) or pk == EVERYONE else str(pk))
        return found

    def pk_of_row(self, values: Iterable[object]) -> Pk:
        """Return the primary key of these values of the columns, as they are in the database or in an owner key."""
        if self.has_integer_pks:
            (pk,) = values
            return pk if type(pk) is int else self.pk_fields[0].to_python(pk)
        found = [field.to_python(value) for field, value in zip(self.pk_fields, values, strict=True)]
        return CompositePk(found) if self.has_several_columns else found[0]

    def parse(self, owner_key: str) -> Pk:
        """Return the primary key whose ``str()`` is this owner key."""
        return self.pk_of_row(json.loads(owner_key) if self.has_several_columns else (owner_key,))

    def valid_pk(self, owner_key: str) -> Pk:
        """Return the primary key of an owner key that may be anyone's text. Raises ValidationError if there is none.

        As in ``save()``, the field's validators do not run.
        """
        try:
            pk = self.parse(owner_key)
        except UNREADABLE:
            pk = None
        if str(pk) != owner_key or not all(map(fits, self.pk_fields, values_of(pk))):
            raise ValidationError(f"{owner_key!r} is not a primary key.")
        return pk

    def db_columns(self, pks: Sequence[Pk], connection: BaseDatabaseWrapper) -> list[list[Param]]:
        """Return primary keys column by column, as the driver takes them. They are passed as prepared, because Django
        refuses 0 on MySQL otherwise."""
        columns = zip(*pks, strict=True) if self.has_several_columns else [pks]
        return [
            list(column)
            if isinstance(field, IntegerField)
            else [field.get_db_prep_value(field.get_prep_value(value), connection, prepared=True) for value in column]
            for field, column in zip(self.pk_fields, columns, strict=True)
        ]


@lru_cache(maxsize=1000)
def _column_of_pk(model: type[Model]) -> tuple[str, str | None]:
    """Return the table and column of a model's primary keys. A child model or a profile shares the keys of its parent,
    and a historical model the keys of the current model."""
    return _column(target_of(model._meta.pk))


def _column(field: Field) -> tuple[str, str | None]:
    return field.model._meta.db_table, field.column
