"""The places that hold a counter: every database, and every tenant's schema."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Generic, NamedTuple, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.models import Model

from .databases.errors import OUTAGES
from .databases.routing import alias_for, in_schema, schema_of, working_on
from .declaration import Declaration
from .internals import DEFAULT_DB_ALIAS
from .models import DatabaseId

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

    def is_used(place: Place, model: type[Model]) -> bool:
        if place.schema or place.alias == alias_for(model):
            return True
        return router.allow_migrate_model(place.alias, model) and has_tables(place.alias)

    found: dict[type[Model], list[Place]] = {}
    for model in models:
        aliases = [alias for alias in dict.fromkeys([alias_for(model), *others]) if database in (None, alias)]
        all_places = [place for alias in aliases for place in places_in(alias, schema)]
        found[model] = [p for p in all_places if schema in (None, p.schema) and is_used(p, model)]
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
    counters: Collection[C], database: str | None = None, schema: str | None = None
) -> list[LocalCounter[C]]:
    """Return every counter at each of its places."""
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
