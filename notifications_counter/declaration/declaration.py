"""What a counter counts: rows of a source model that satisfy a condition, for each owner; or the sum of a column.

Declarations are registered here, by name and by the tables of source and totals. ``counters.py`` adds the methods that
sites call.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from django.apps import apps
from django.core.exceptions import AppRegistryNotReady
from django.db.models import Field, GeneratedField, Model, Q

from ..exceptions import ConfigurationError
from .condition import Condition
from .fingerprint import fingerprint_of, kind_of
from .owners import target_of
from .sharding import Sharded

_declarations: dict[str, Declaration] = {}
_switched_off: dict[str, Declaration] = {}
_by_table: dict[str, Tables | None] = {}
NAME = re.compile(r"[^{}\x00-\x1f\x7f]{1,100}")


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
    if not _by_table:
        with suppress(AppRegistryNotReady):
            # At once: another thread would take a table that is still missing for uncounted.
            _by_table.update(_find_tables())
    return _by_table.get(table)


def _find_tables() -> dict[str, Tables | None]:
    found: dict[str, Tables | None] = {"": None}
    for counter in _declarations.values():
        with suppress(LookupError):  # a system check reports it
            for model, role in ((counter.source, "sources"), (counter.totals, "totals")):
                tables = found.get(model._meta.db_table) or Tables()
                found[model._meta.db_table] = tables._replace(**{role: (*getattr(tables, role), counter)})
    return found


class Declaration(Sharded):
    """Which rows a counter counts, for whom, and where the totals are stored.

    ``name``         1 to 100 characters; part of the keys in Redis
    ``source``       the counted model, as ``"app.Model"``
    ``owner``        its foreign key to the owner; or several columns, any of which may be a foreign key
    ``condition``    a Q over the row's own columns that says which rows count
    ``sum``          an integer column of the source: the count is its sum over these rows, where NULL is 0
    ``totals``       a subclass of BaseCount whose one-to-one primary key is the owner; for several columns, a model
                     with columns of the same names, as its composite primary key or under a unique constraint
    ``field``        its integer field for the count, a BigIntegerField for a sum
    ``batch_field``  its field for the last batch that was added to the count; counters that share a totals model each
                     need their own
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
        sum: str | None = None,
        disabled: str = "",
    ):
        self.name = name
        self.source_label = source
        self.owner = owner if isinstance(owner, str) else tuple(owner)
        self.q = condition
        self.sum = sum
        self.least = -math.inf if sum else 0  # a lower count is wrong
        self.totals_label = totals
        self.field = field
        self.batch_field = batch_field
        self.disabled = disabled
        for what, label in (("source", source), ("totals", totals)):
            if not isinstance(label, str) or label.count(".") != 1:
                raise ConfigurationError(
                    f'The {what} of counter {name!r} must be a string such as "app_label.Model", not {label!r:.200}.'
                )
        if not isinstance(condition, Q):
            raise ConfigurationError(f"The condition of counter {name!r} must be a Q object, not {condition!r:.200}.")
        if apps.ready:
            raise ConfigurationError(
                f"Counter {name!r} is declared too late. Processes that have not imported this module would not count "
                "its rows. Declare it in the module 'counters' of an app in INSTALLED_APPS."
            )
        if disabled:
            _switched_off[name] = self
        else:
            self._register()

    def _register(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"{self.name!r:.200} cannot be the name of a counter: use 1 to 100 characters without braces or "
                "control characters."
            )
        if self.name in _declarations:
            raise ConfigurationError(f"There is a counter named {self.name!r} already; give this one a different name.")
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
    def condition(self) -> Condition:
        return Condition(self.source, self.q, self.sum)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what is counted, for whom, and where the totals are."""
        return fingerprint_of(self)

    @cached_property
    def columns(self) -> tuple[Field, ...]:
        """The columns of the source that decide a count: the owner's, those that the condition reads, and that of a
        sum."""
        return (*self.owner_fields, *self.condition.fields)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for field in self.columns for name in (field.name, field.attname))

    @cached_property
    def _generated(self) -> bool:
        return any(isinstance(field, GeneratedField) for field in self.columns)

    def reads(self, names: Iterable[str]) -> bool:
        """Return whether a change of these fields can change a count."""
        return self._generated or not self._names.isdisjoint(names)

    def moves(self, names: Iterable[str]) -> bool:
        """Return whether a change of these fields can give a row to another owner."""
        is_generated = any(isinstance(field, GeneratedField) for field in self.owner_fields)
        return is_generated or not set(self.owner_attnames).isdisjoint(names)

    def has_columns(self, model: type[Model]) -> bool:
        """Return whether a model of the source's table has all these columns. A historical model may not."""
        if model._meta.concrete_model is self.source:
            return True
        return set(map(_identity, self.columns)) <= set(map(_identity, model._meta.concrete_fields))


def _identity(field: Any) -> tuple[str, str, str, str]:
    """Return what two models of a table must have in common so that expressions on this column fit both."""
    return field.name, field.attname, field.column, kind_of(target_of(field))
