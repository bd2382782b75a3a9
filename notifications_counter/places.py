"""The places that hold a counter: every database, and every tenant's schema."""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Generic, NamedTuple, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, router
from django.db.models import Model

from .databases.identity import look_up
from .databases.routing import alias_for, in_schema, schema_of, working_on
from .declaration import Declaration
from .exceptions import EXPECTED, OUTAGES, BufferUnavailable
from .models import DatabaseId

logger = logging.getLogger("notifications_counter")

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


def _places_in(alias: str, schema: str | None) -> list[Place]:
    """Return the places in a database that may hold counts. If it is unreachable, return that of the given schema."""
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


def _id_of(place: Place) -> str | None:
    """Return the id of the database at a place, or None if there is no database, or it lacks the tables, because it was
    not migrated, or they were dropped."""
    try:
        with at(place):
            return look_up(connections[place.alias]).id
    except ImproperlyConfigured:  # an empty entry, as DATABASES["default"] may be
        return None
    except OUTAGES as error:
        connections[place.alias].close_if_unusable_or_obsolete()
        reason = error.__cause__ if isinstance(error, BufferUnavailable) else error
        is_there = isinstance(reason, OUTAGES) and "no such table" not in str(reason)  # SQLite's words
        return str(place) if is_there else None  # as above


def places(
    models: Iterable[type[Model]], database: str | None = None, schema: str | None = None
) -> dict[type[Model], list[Place]]:
    """Return the places where rows of each model are counted. Each database is asked once.

    The database that the router names comes first, then every other database that has the app's tables. Two aliases
    of one database are one place, and replicas are left out. ``database`` and ``schema`` restrict the result.
    """
    places_in, id_of = cache(_places_in), cache(_id_of)
    found: dict[type[Model], list[Place]] = {}
    for model in models:
        first = alias_for(model)
        by_id: dict[str, Place] = {}
        for alias in dict.fromkeys([first, *connections]):
            if database not in (None, alias) or (alias != first and connections[alias].settings_dict["TEST"]["MIRROR"]):
                continue
            for place in places_in(alias, schema):
                if schema not in (None, place.schema):
                    continue
                if alias != first and not place.schema and not router.allow_migrate_model(alias, model):
                    continue
                id_ = id_of(place)
                if id_ or (alias == first and not place.schema):
                    by_id.setdefault(id_ or str(place), place)
        found[model] = list(by_id.values())
    return found


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
    several = len(list(connections)) > 1 and not for_users
    found = places(c.source for c, place in mine.items() if (place.schema or several) and not is_of_tenant(place))
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
    error, a mistake in the code if there is one, and log the others. The same message counts once."""
    failed: dict[str, tuple[str, Exception]] = {}
    for each in local:
        try:
            with at(each.place):
                work(each)
        except Exception as error:
            connections[each.place.alias].close_if_unusable_or_obsolete()
            error.add_note(each.name)
            failed.setdefault(str(error), (each.name, error))
    mistakes_first = sorted(failed.values(), key=lambda failure: isinstance(failure[1], EXPECTED))
    for name, other in mistakes_first[1:]:
        about = {"event": "run_failed", "counter": name, "reason": str(other)}
        logger.error("%s: %s", name, other, exc_info=None if isinstance(other, EXPECTED) else other, extra=about)
    if mistakes_first:
        raise mistakes_first[0][1]
