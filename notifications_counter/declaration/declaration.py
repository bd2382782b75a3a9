"""Declares what a counter counts, for whom, and where.

Declarations are registered here, by name and by the table of the source. ``counters.py`` adds the methods that
sites call.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import cached_property

from django.apps import apps
from django.core.exceptions import AppRegistryNotReady
from django.core.signals import setting_changed
from django.db import connections
from django.db.models import Field, GeneratedField, Model, Q
from django.dispatch import receiver

from ..buffer import Buffer
from ..conf import SETTING, options
from ..databases.identity import digest, identify
from ..databases.routing import alias_for
from ..exceptions import ConfigurationError
from ..internals import BaseDatabaseWrapper
from ..models.fields import field_of, target_of
from ..redis.client import Refusing, client_of
from .condition import Condition
from .fingerprint import as_code, kind_of, values_of_column
from .owners import Owners

_declarations: dict[str, Declaration] = {}
_by_table: dict[str, tuple[Declaration, ...]] | None = None  # until models are loaded, and someone asks
NAME = re.compile(r"[^{}\x00-\x1f\x7f]{1,100}")


def declarations() -> Collection[Declaration]:
    """Return every declaration, in the order they were made."""
    return _declarations.values()


def counters_of_table(table: str) -> tuple[Declaration, ...]:
    """Return the counters that count the rows of a table, whichever model writes to it."""
    global _by_table
    if _by_table is None:
        with suppress(AppRegistryNotReady):
            # All at once: another thread would take a table that is still missing for uncounted.
            _by_table = _find_counters()
    return (_by_table or {}).get(table, ())


def _find_counters() -> dict[str, tuple[Declaration, ...]]:
    found: dict[str, tuple[Declaration, ...]] = {}
    for counter in _declarations.values():
        with suppress(LookupError):  # a system check reports it
            table = counter.source._meta.db_table
            found[table] = (*found.get(table, ()), counter)
    return found


class Declaration(Owners):
    """Which rows a counter counts, for whom, and where the totals are stored: ``Counter`` explains the arguments."""

    def __init__(
        self,
        name: str,
        *,
        source: str,
        owner: str | Sequence[str],
        condition: Q,
        totals: str,
        field: str,
        sum: str | None = None,
        is_used: bool = True,
    ):
        super().__init__(name, source, owner, totals, is_used)
        self.q = condition  # the attribute ``condition`` is a Condition, which also knows the source and the sum
        self.sum = sum
        self.least = -math.inf if sum else 0  # a lower count is wrong
        self.field = field
        if not isinstance(condition, Q):
            raise ConfigurationError(f"The condition of counter {name!r} must be a Q object, not {condition!r:.200}.")
        if apps.ready:
            raise ConfigurationError(
                f"Counter {name!r} is declared too late. Processes that have not imported this module would not count "
                "its rows. Declare it in the module 'counters' of an app in INSTALLED_APPS."
            )
        if is_used:
            self._register()

    def _register(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"{self.name!r:.200} cannot be the name of a counter: use 1 to 100 characters without braces or "
                "control characters."
            )
        global _by_table
        if self.name in _declarations:
            raise ConfigurationError(f"There is a counter named {self.name!r} already; give this one a different name.")
        _declarations[self.name] = self
        _by_table = None

    def __repr__(self) -> str:
        return f"<Counter {self.name}>"

    # ------------------------------------------------------------------ parts
    @cached_property
    def condition(self) -> Condition:
        return Condition(self.source, self.q, self.sum)

    @property
    def fingerprint(self) -> str:
        """A digest of what is counted, for whom, and where: processes with another KEY_PREFIX don't see what this one
        tells Redis. It includes neither the name of the counter nor SQL, which differs between versions of Django."""
        return digest(options.KEY_PREFIX, self._content)

    @cached_property
    def _content(self) -> str:
        source, totals = self.source._meta, self.totals._meta
        fields = (*self.owner_fields, field_of(self.totals, self.field))
        about = [source.db_table, totals.db_table, *(field.column for field in fields), as_code(self.q)]
        if self.condition.summed:
            about.append(f"sum {self.condition.summed.column}")
        return digest(*about, *map(kind_of, self.pk_fields), *sorted(map(values_of_column, self.columns)))

    @cached_property
    def columns(self) -> tuple[Field, ...]:
        """The columns of the source that decide a count: of the owner, the condition, and the sum."""
        return (*self.owner_fields, *self.condition.fields)

    @cached_property
    def _column_names(self) -> frozenset[str]:
        return frozenset(str(field.column) for field in self.columns)

    @cached_property
    def _generated(self) -> bool:
        return any(isinstance(field, GeneratedField) for field in self.columns)

    def reads(self, columns: Iterable[str]) -> bool:
        """Return whether a change of these columns can change a count. Another model of the table may give their fields
        other names."""
        return self._generated or not self._column_names.isdisjoint(columns)

    def moves(self, names: Iterable[str]) -> bool:
        """Return whether a change of these fields can move a row to another owner."""
        is_generated = any(isinstance(field, GeneratedField) for field in self.owner_fields)
        return is_generated or not set(self.owner_attnames).isdisjoint(names)

    def has_columns(self, model: type[Model]) -> bool:
        """Return whether a model of the source's table has all these columns, which a historical model may lack."""
        if model._meta.concrete_model is self.source:  # only faster
            return True
        return set(map(_identity, self.columns)) <= set(map(_identity, model._meta.concrete_fields))

    # ----------------------------------------------------------------- buffer
    @property
    def db(self) -> str:
        """The alias of the database in which this thread or task uses this counter."""
        return alias_for(self.source)

    @property
    def buffer(self) -> Buffer:
        """The buffer in this thread's database."""
        return self.buffer_in(connections[self.db])

    def buffer_in(self, connection: BaseDatabaseWrapper) -> Buffer:
        """Return the buffer in the database of a connection. While the database has no id, it refuses all calls."""
        database = identify(connection)
        try:
            return self._buffers[database.id]
        except KeyError:
            base = f"{{{options.KEY_PREFIX}:{self.name}}}:{database.id}"
            if database.problem:
                return Buffer(Refusing(database.problem), base, self.fingerprint, False)
            client, expects_state = client_of(options.CACHE_ALIAS), self.name in database.served
            return self._buffers.setdefault(database.id, Buffer(client, base, self.fingerprint, expects_state))

    @cached_property
    def _buffers(self) -> dict[str, Buffer]:
        return {}  # by id of the database


@receiver(setting_changed)
def _drop_buffers(*, setting: str, **_: object) -> None:
    if setting in ("CACHES", SETTING):
        for counter in declarations():
            counter._buffers.clear()


def _identity(field: Field) -> tuple[str, str, str | None, str]:
    """Return what two models must have in common so that expressions on a column fit both."""
    return field.name, field.attname, field.column, kind_of(target_of(field))
