"""The places that hold a counter: every database, and every tenant's schema."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.models import Model

from .databases.errors import EXPECTED, OUTAGES, explain
from .databases.routing import alias_for, in_schema, schema_of, working_on
from .declaration import Declaration
from .internals import DEFAULT_DB_ALIAS
from .models import DatabaseId
from .reports import report

C = TypeVar("C", bound=Declaration)


class Place(NamedTuple):
    """The alias of a database, and a tenant's schema in it if a tenant library sets one."""

    alias: str
    schema: str | None = None

    def __str__(self) -> str:
        return self.schema or self.alias


def here(model: type[Model]) -> Place:
    """Return the place where this thread or task counts rows of a model."""
    alias = alias_for(model)
    return Place(alias, schema_of(connections[alias]))


def is_of_tenant(place: Place) -> bool:
    """Return whether a place belongs to a tenant: a schema other than the public one, or a database other than the
    default."""
    public = getattr(settings, "PUBLIC_SCHEMA_NAME", "public")  # a setting of django-tenants
    return place.alias != DEFAULT_DB_ALIAS or place.schema not in (None, public)


def places(
    models: Iterable[type[Model]], database: str | None = None, schema: str | None = None
) -> dict[type[Model], list[Place]]:
    """Return the places where rows of each model are counted. Each database is asked once.

    The database that the router names comes first, then every other database that has the app's tables, without
    replicas. ``database`` and ``schema`` restrict the result.
    """
    places_in, has_tables = cache(_places_in), cache(_has_tables)
    others = [alias for alias in connections if not connections[alias].settings_dict["TEST"]["MIRROR"]]
    found: dict[type[Model], list[Place]] = {}
    for model in models:
        first, found[model] = alias_for(model), []
        for alias in dict.fromkeys([first, *others]):
            for place in places_in(alias, schema) if database in (None, alias) else ():
                is_used = place.schema or alias == first
                is_used = is_used or (router.allow_migrate_model(alias, model) and has_tables(alias))
                if is_used and schema in (None, place.schema):
                    found[model].append(place)
    return found


def _places_in(alias: str, schema: str | None) -> list[Place]:
    """Return the places in a database: itself, or the schemas that have the app's tables. If it is unreachable, return
    that of the given schema."""
    connection = connections[alias]
    if not hasattr(connection, "set_schema"):
        return [Place(alias)]
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
                "WHERE relname = %s AND relkind = 'r' ORDER BY nspname",
                [DatabaseId._meta.db_table],
            )
            return [Place(alias, name) for (name,) in cursor.fetchall()]
    except OUTAGES:  # the caller will run into it, and report it
        connection.close_if_unusable_or_obsolete()
        return [Place(alias, schema)]


def _has_tables(alias: str) -> bool:
    """Return whether a database has the app's tables. If it is unreachable, it may."""
    connection = connections[alias]
    try:
        return DatabaseId._meta.db_table in connection.introspection.table_names()
    except ImproperlyConfigured:  # an empty entry, as DATABASES["default"] may be
        return False
    except OUTAGES:  # as above
        connection.close_if_unusable_or_obsolete()
        return True


class LocalCounter(NamedTuple, Generic[C]):
    """A counter at a place. If the counter has several places, the ``name`` includes this one."""

    name: str
    counter: C
    place: Place


def local_counters(
    counters: Iterable[C], database: str | None = None, schema: str | None = None
) -> list[LocalCounter[C]]:
    """Return every counter at each of its places."""
    counters = list(counters)
    found = places([counter.source for counter in counters], database, schema)
    return [local for counter in counters for local in _named(counter, found[counter.source])]


def visible_counters(counters: Iterable[C], for_users: bool = False) -> list[LocalCounter[C]]:
    """Return every counter at the places that the caller may see: inside a tenant, only its own; elsewhere, all.

    ``for_users``: without schemas, only the current database. It may be a tenant's, whose users must not see others.
    """
    mine = {counter: here(counter.source) for counter in counters}
    found = places(c.source for c, place in mine.items() if not is_of_tenant(place) and (place.schema or not for_users))
    return [local for c, place in mine.items() for local in _named(c, found.get(c.source, [place]))]


def _named(counter: C, found: list[Place]) -> list[LocalCounter[C]]:
    if len(found) == 1:
        return [LocalCounter(counter.name, counter, found[0])]
    shared = Tally(map(str, found))  # two databases may each have a schema of this name
    places = {place: str(place) if shared[str(place)] == 1 else f"{place.alias}, {place}" for place in found}
    return [LocalCounter(f"{counter.name} ({name})", counter, place) for place, name in places.items()]


@contextmanager
def at(place: Place) -> Iterator[None]:
    """Make the app work at a place. If it is a tenant's schema, everything else on the connection works there too."""
    with working_on(place.alias), in_schema(connections[place.alias], place.schema):
        yield


def at_each(local: Iterable[LocalCounter[C]], work: Callable[[LocalCounter[C]], object]) -> None:
    """Call a function at the place of each counter. If it fails for one, go on with the others. In the end, raise one
    error, a mistake in the code if there is one, and log the others."""
    failures = Failures()
    for each in local:
        with failures.caught(each):
            work(each)
    failures.raise_one()


class Failures:
    """What fails in a run, which goes on at the next place. The same message counts once, and so does a kind of outage.
    ``loop``: the name of a command that runs again and again."""

    def __init__(self, loop: str = ""):
        self.loop = loop
        self._before: dict[str, tuple[str, Exception]] = {}
        self._now: dict[str, tuple[str, Exception]] = {}

    @contextmanager
    def caught(self, local: LocalCounter[Any] | None = None) -> Iterator[None]:
        """Catch an error of the block, which works at the place of a counter, if one is given."""
        try:
            with at(local.place) if local else nullcontext():
                yield
        except Exception as error:
            if local:
                error.add_note(local.name)
                if not (connection := connections[local.place.alias]).in_atomic_block:
                    connection.close()  # after a failover, it may be one to a replica
            kind = type(error).__name__ if isinstance(error, OUTAGES) else str(error)
            self._now.setdefault(kind, (local.name if local else "", error))

    def raise_one(self) -> None:
        """Raise one of the errors, if any, and log the others."""
        mistakes_first = sorted(self._now.values(), key=lambda failure: isinstance(failure[1], EXPECTED))
        for failure in mistakes_first[1:]:
            self._log(*failure)
        if mistakes_first:
            raise mistakes_first[0][1]

    def end_run(self) -> bool:
        """Log what did not fail in the run before, or that the loop works again. Returns whether anything failed."""
        for kind, failure in self._now.items():
            if kind not in self._before:
                self._log(*failure)
        if self._before and not self._now:
            report("run_works", command=self.loop)
        self._before, self._now = self._now, {}
        return bool(self._before)

    def _log(self, name: str, error: Exception) -> None:
        """Log an error, with its traceback if it is a mistake in the code."""
        mistake = None if isinstance(error, EXPECTED) else error
        if self.loop:
            report("run_failed", exc_info=mistake, command=self.loop, reason=explain(error, name))
        else:
            report("also_failed", exc_info=mistake, reason=explain(error, name))
