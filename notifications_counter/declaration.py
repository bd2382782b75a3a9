"""What a counter counts: rows of a source model that satisfy a condition, for each owner.

Declarations are registered here, by name and by the tables of source and totals. ``counters.py`` adds the methods that
sites call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from zlib import crc32

from django.apps import apps
from django.core.exceptions import ValidationError
from django.core.signals import setting_changed
from django.db import connections
from django.db.models import Field, IntegerField, Model, Q
from django.dispatch import receiver

from .buffer import Buffer
from .buffer.client import client_of
from .buffer.keys import Keys
from .condition import Condition
from .conf import SETTING, options
from .databases import Database, alias_for, forget_buffers, identify, look_up
from .exceptions import BufferUnavailable, ConfigurationError
from .internals import MigrationWriter
from .primary_keys import INTEGERS, LIMIT, SEPARATOR, TAB, CompositeKey, as_json, fits, plain, primary_key

_declarations: dict[str, Declaration] = {}
_switched_off: dict[str, Declaration] = {}
_by_table: dict[str, Tables | None] = {}
UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError)
"""What JSON or a field raises for a member that the app has not written."""


def declarations() -> Iterable[Declaration]:
    """Return every declaration, in the order in which they were made."""
    return _declarations.values()


def switched_off(source: str) -> dict[str, Declaration]:
    """Return the built-in counters of a source that are switched off, by name, unless the site uses the name itself."""
    return {
        name: counter
        for name, counter in _switched_off.items()
        if counter.source_label == source and name not in _declarations
    }


class Tables(NamedTuple):
    """The counters that count the rows of a table, and those that store their totals in it."""

    sources: tuple[Declaration, ...] = ()
    totals: tuple[Declaration, ...] = ()


def counters_of_table(table: str) -> Tables | None:
    """Return the counters that a table belongs to, whatever model writes to it; None for other tables."""
    if not _by_table and apps.models_ready:
        _by_table[""] = None
        for counter in _declarations.values():
            with suppress(LookupError):  # a system check reports it
                for model, role in ((counter.source, "sources"), (counter.totals, "totals")):
                    found = _by_table.get(model._meta.db_table) or Tables()
                    counters = {role: (*getattr(found, role), counter)}
                    _by_table[model._meta.db_table] = found._replace(**counters)
    return _by_table.get(table)


class Declaration:
    """Which rows a counter counts, for whom, and where the totals are stored.

    ``source``       the counted model, as ``"app.Model"``
    ``owner``        its foreign key to the owner; or several columns, any of which may be a foreign key
    ``condition``    a Q over the row's own columns that says which rows count
    ``totals``       a subclass of BaseCount whose one-to-one primary key is the owner; for several columns, a model
                     with columns of the same names, as its composite primary key or under a unique constraint
    ``field``        its integer field for the count
    ``batch_field``  its field for the last batch that was added to the count; counters that share a totals model each
                     need their own
    ``activity``     name of the time-sliced counters of rows created, read and deleted, if RECORD_ACTIVITY is on
    ``disabled``     for a built-in counter that is switched off: why, and what to do. It is not registered, and cannot
                     be used
    """

    def __init__(
        self,
        name: str,
        *,
        source: str,
        owner: str | Sequence[str],
        condition: Q,
        totals: str,
        field: str,
        batch_field: str = "flushed_batch",
        activity: str = "",
        disabled: str = "",
    ):
        self.name = name
        self.activity = activity
        self.source_label = source
        self.owner = owner if isinstance(owner, str) else tuple(owner)
        self.q = condition
        self.totals_label = totals
        self.field = field
        self.batch_field = batch_field
        self.disabled = disabled
        if disabled:
            _switched_off[name] = self
        else:
            self._register()

    def _register(self) -> None:
        if self.name in _declarations:
            raise ConfigurationError(f"There is a counter named {self.name!r} already; give this one another name.")
        _declarations[self.name] = self
        _by_table.clear()

    def _switch(self, disabled: str) -> None:
        """Switch a built-in counter off for the reason given, or on if there is none."""
        if disabled and not self.disabled:
            _switched_off[self.name] = _declarations.pop(self.name)
            _by_table.clear()
            for models in ("source", "totals"):
                vars(self).pop(models, None)
        elif self.disabled and not disabled:
            self._register()
            del _switched_off[self.name]
        self.disabled = disabled

    def __repr__(self) -> str:
        return f"<Counter {self.name}>"

    # ------------------------------------------------------------------ parts
    @cached_property
    def source(self) -> type[Model]:
        return self._model(self.source_label)

    @cached_property
    def totals(self) -> type[Model]:
        return self._model(self.totals_label)

    @property
    def sharing(self) -> list[Declaration]:
        """The counters whose totals are in the same rows, including this one."""
        tables = counters_of_table(self.totals._meta.db_table)
        return [counter for counter in tables.totals if counter.db == self.db] if tables else [self]

    def _model(self, label: str) -> type[Model]:
        if self.disabled:
            raise ConfigurationError(self.disabled)
        return apps.get_model(label)

    @cached_property
    def owner_fields(self) -> tuple[Any, ...]:
        """The columns of the source that identify the owner."""
        names = (self.owner,) if isinstance(self.owner, str) else self.owner
        return tuple(self.source._meta.get_field(name) for name in names)

    @cached_property
    def owner_attnames(self) -> tuple[str, ...]:
        return tuple(field.attname for field in self.owner_fields)

    @cached_property
    def has_several_columns(self) -> bool:
        return not isinstance(self.owner, str)

    @cached_property
    def condition(self) -> Condition:
        return Condition(self.source, self.q)

    @cached_property
    def total_fields(self) -> tuple[Any, ...]:
        """The columns of the totals that identify the owner."""
        options = self.totals._meta
        return (options.pk,) if isinstance(self.owner, str) else tuple(map(options.get_field, self.owner))

    @cached_property
    def key_fields(self) -> tuple[Field, ...]:
        """The fields whose values make up an owner's key, at the end of any foreign keys."""
        return tuple(map(target_of, self.total_fields))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what is counted, for whom, and where the totals are. It includes neither the counter's name, nor
        SQL, which differs between versions of Django."""
        try:
            condition, _ = MigrationWriter.serialize(self.q)
        except ValueError:  # Django cannot serialize it
            condition = re.sub(r" at 0x[0-9a-f]+", "", repr(self.q))
        source, totals = self.source._meta, self.totals._meta
        fields = (*self.owner_fields, totals.get_field(self.field), totals.get_field(self.batch_field))
        about = (source.db_table, totals.db_table, *(field.column for field in fields), condition)
        return sha256("\0".join(about).encode()).hexdigest()[:16]

    @cached_property
    def has_integer_keys(self) -> bool:
        return not self.has_several_columns and isinstance(self.key_fields[0], IntegerField)

    @cached_property
    def columns(self) -> tuple[Field, ...]:
        """The columns of the source that decide a count: the owner's, and those that the condition reads."""
        return (*self.owner_fields, *self.condition.fields)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for field in self.columns for name in (field.name, field.attname))

    @cached_property
    def _generated(self) -> bool:
        return any(field.generated for field in self.columns)

    def reads(self, names: Iterable[str]) -> bool:
        """Return whether a change of these fields can change a count."""
        return self._generated or not self._names.isdisjoint(names)

    def has_columns(self, model: type[Model]) -> bool:
        """Return whether a model of the source's table has all these columns. A historical model may not."""
        if model._meta.concrete_model is self.source:
            return True
        return set(map(_identity, self.columns)) <= set(map(_identity, model._meta.concrete_fields))

    @property
    def db(self) -> str:
        """The alias of the database in which this thread or task uses this counter."""
        return alias_for(self.source)

    # ------------------------------------------------------------------- keys
    def key(self, owner: Any) -> Any:
        """Return the primary key of an owner, given as an instance or a key. An owner of several columns is given as a
        sequence of these, and its key is a CompositeKey. Raises ValueError for anything else."""
        if not self.has_several_columns:
            if self.has_integer_keys and type(owner) is int and -LIMIT <= owner < LIMIT:
                return owner
            return self._key(self.key_fields[0], owner)
        return CompositeKey(self._keys(self.key_fields, owner))

    def is_first(self, owner: Any) -> bool:
        """Return whether this stands for all columns of an owner but the last: a sequence, or one value."""
        number = len(owner) if isinstance(owner, tuple | list) else 1
        return self.has_several_columns and number == len(self.key_fields) - 1

    def first_of_key(self, owner: Any) -> tuple[Any, ...]:
        """Return the primary keys of all columns of an owner but the last, given as a sequence, or as one value."""
        fields = self.key_fields[:-1]
        return self._keys(fields, owner if len(fields) > 1 else (owner,))

    def _keys(self, fields: Sequence[Field], owner: Any) -> tuple[Any, ...]:
        if not fields or not isinstance(owner, tuple | list) or len(owner) != len(fields):
            names = self.owner if isinstance(self.owner, tuple) else (self.owner,)
            raise ValueError(
                f"Counter {self.name!r} counts for {' and '.join(names)}, and needs {len(fields)} values, not "
                f"{owner!r:.200}."
            )
        return tuple(map(self._key, fields, owner))

    def _key(self, field: Field, owner: Any) -> Any:
        if type(owner) is not int and hasattr(owner, "pk"):
            if isinstance(owner, Model) and _column_of_key(owner._meta.model) != _column(field):
                label = field.model._meta.label if field.primary_key else str(field)
                raise ValueError(
                    f"Counter {self.name!r} counts for {label}, not for {owner._meta.label}. Pass an instance of "
                    f"{label}, or its primary key."
                )
            owner = owner.pk
        if owner is None:
            raise ValueError(f"Counter {self.name!r} needs an owner with a primary key; save it first.")
        return primary_key(field, owner)

    def encode(self, key: Any) -> str | None:
        """Return the member that stands for an owner in Redis, or None if there is no owner. The key of several columns
        is a sequence of their values; if any of them is None, there is no owner."""
        if key is None or type(key) is int:
            return None if key is None else str(key)
        try:
            found = self.key_of(map(plain, key) if self.has_several_columns else (plain(key),))
        except ValidationError:
            return None
        return None if self.has_several_columns and None in found else str(found)

    def key_of(self, values: Iterable[Any]) -> Any:
        """Return the key made up of these values of the columns, as the database or a member has them."""
        found = [field.to_python(value) for field, value in zip(self.key_fields, values, strict=True)]
        return CompositeKey(found) if self.has_several_columns else found[0]

    def parse(self, text: str) -> Any:
        """Return the key whose ``str()`` is this text."""
        return self.key_of(json.loads(text) if self.has_several_columns else (text,))

    def decode(self, member: str) -> Any:
        """Return the primary key that a member stands for. Raises ValidationError if there is none.

        The field's validators are not run, as in ``save()``.
        """
        try:
            key = self.parse(member)
        except UNREADABLE:
            key = None
        values = key if self.has_several_columns and key else (key,)
        if str(key) != member or not all(map(fits, self.key_fields, values)):
            raise ValidationError(f"{member!r} is not a primary key.")
        return key

    @cached_property
    def separator(self) -> str:
        """The separator for ``decode_joined``. Empty if members cannot be joined, because they may contain any text."""
        if self.has_several_columns:
            return SEPARATOR
        return "," if self.has_integer_keys else ""

    def decode_joined(self, members: str) -> list[list[Any]]:
        """Return the primary keys that joined members stand for, column by column. Raises ValidationError if one is
        invalid. This is much faster than one by one, and leaves less to the garbage collector."""
        width, same = len(self.key_fields), False
        columns: list[list[Any]] = []
        with suppress(*UNREADABLE):
            if self.has_several_columns:
                rows = members[1:-1].split(f"]{SEPARATOR}[")
                values = json.loads(f"[{SEPARATOR.join(rows)}]")
                columns = [list(map(field.to_python, values[i::width])) for i, field in enumerate(self.key_fields)]
                for i, column in enumerate(columns):
                    values[i::width] = column
                same = as_json(values)[1:-1] == SEPARATOR.join(rows) and {row.count(TAB) for row in rows} == {width - 1}
            else:
                columns = [[int(key) for key in members.split(",")]]
                same = bool(INTEGERS.fullmatch(members))
        if not same or not all(
            all(fits(f, key) for key in keys) for f, keys in zip(self.key_fields, columns, strict=True)
        ):
            raise ValidationError("Not all of these are primary keys.")
        return columns

    def columns_of(self, keys: Sequence[Any]) -> list[Sequence[Any]]:
        """Return primary keys column by column."""
        return list(zip(*keys, strict=True)) if self.has_several_columns else [keys]

    def db_columns(self, columns: Sequence[Sequence[Any]], connection: Any) -> list[list[Any]]:
        """Convert columns of primary keys for the driver, except for integers, which need no conversion. The others are
        passed as prepared, because Django refuses 0 on MySQL otherwise."""
        return [
            list(column)
            if isinstance(field, IntegerField)
            else [field.get_db_prep_value(field.get_prep_value(value), connection, prepared=True) for value in column]
            for field, column in zip(self.key_fields, columns, strict=True)
        ]

    # ---------------------------------------------------------------- buffers
    @property
    def buffers(self) -> list[Buffer]:
        """The buffers of all shards, in the database that this thread works on. BufferUnavailable if it has no id
        yet."""
        return self.buffers_in(connections[self.db])

    def buffers_in(self, connection: Any) -> list[Buffer]:
        """Return the buffers of all shards in the database of a connection."""
        database = identify(connection)
        try:
            return database.buffers[self]
        except KeyError:
            shards = options.SHARDS
            buffers = [self.make_buffer(database, shard, shards) for shard in range(shards)]
            return database.buffers.setdefault(self, buffers)

    def make_buffer(self, database: Database, shard: int, shards: int) -> Buffer:
        """Return the buffer of one of so many ``shards``."""
        keys = Keys.of(options.KEY_PREFIX, self.name, shard, shards, database.id, database.place)
        fingerprint = "" if self.disabled else self.fingerprint
        epoch = database.epochs.get((self.name, shard, shards), 0)
        return Buffer(client_of(options.CACHE_ALIAS), keys, database.ttl, fingerprint, epoch)

    def buffer_of(self, member: str, connection: Any = None) -> Buffer:
        """Return the buffer of an owner's shard."""
        buffers = self.buffers if connection is None else self.buffers_in(connection)
        if len(buffers) == 1:
            return buffers[0]
        # Owners that differ only in the last of several columns share a shard.
        place = member.rpartition(TAB)[0] if self.has_several_columns else member
        return buffers[crc32(place.encode(errors="surrogateescape")) % len(buffers)]

    def by_shard(self, members: Sequence[Any]) -> Iterator[tuple[Buffer, list[Any]]]:
        """Group members, or primary keys, by shard."""
        if not members:
            return
        if len(buffers := self.buffers) == 1:
            yield buffers[0], list(members)
            return
        grouped: dict[Buffer, list[Any]] = {}
        for member in members:
            grouped.setdefault(self.buffer_of(str(member)), []).append(member)
        yield from grouped.items()


def each_shard(counter: Declaration, members: Sequence[Any], call: Callable[[Buffer, list[Any]], object]) -> list[Any]:
    """Call a function with each shard and its members. Returns the members for which Redis was out of reach."""
    try:
        shards = list(counter.by_shard(members))
    except BufferUnavailable:  # nobody knows which keys are those of this database
        return list(members)
    failed: list[Any] = []
    for buffer, mine in shards:
        try:
            call(buffer, mine)
        except BufferUnavailable:
            failed += mine
    return failed


def target_of(field: Any) -> Any:
    """Return the field at the end of a chain of foreign keys, whose values they have; any other field itself."""
    while field.remote_field:
        field = field.target_field
    return field


@lru_cache(maxsize=1000)
def _column_of_key(model: type[Model]) -> tuple[str, str]:
    """Return the table and column that a model's primary keys come from. A child model or a profile has the keys of its
    parent, and a historical model those of the current model."""
    return _column(target_of(model._meta.pk))


def _column(field: Any) -> tuple[str, str]:
    return field.model._meta.db_table, field.column


def _identity(field: Any) -> tuple[str, str, str, str]:
    """Return what two models of a table must have in common so that expressions on this column fit both."""
    target = target_of(field)
    kind = "Integer" if isinstance(target, IntegerField) else target.get_internal_type()
    return field.name, field.attname, field.column, kind


def enter_after_migrate(using: str, **_: Any) -> None:
    """Look up the id of a database after ``migrate`` or ``flush``. If it is new, all processes learn of it."""
    connection = connections[using]
    with suppress(BufferUnavailable):
        look_up(connection)
        for counter in _declarations.values():
            if counter.db == using:
                for buffer in counter.buffers_in(connection):
                    buffer.enter()


@receiver(setting_changed)
def _drop_buffers(*, setting: str, **_: Any) -> None:
    if setting in ("CACHES", SETTING):
        forget_buffers()
