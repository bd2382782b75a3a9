"""Every database, and every schema of a tenant, that holds a counter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from django.apps import apps
from django.db import OperationalError, connections, router

from ..databases import alias_for, in_schema, look_up, schema_of, working_on
from ..declaration import Declaration
from ..exceptions import BufferUnavailable

C = TypeVar("C", bound=Declaration)


class Place(NamedTuple):
    """A database, by its alias, and in it the schema of a tenant, if a tenant library sets one."""

    alias: str
    schema: str | None = None

    def __str__(self) -> str:
        return self.schema or self.alias


def here(model: Any) -> Place:
    """Where rows of a model are counted for this thread or task."""
    alias = alias_for(model)
    return Place(alias, schema_of(connections[alias]))


def outside(model: Any) -> Place:
    """The same for a new thread, which works for no tenant."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(here, model).result()


def _places_in(alias: str) -> list[Place]:
    connection: Any = connections[alias]
    if not hasattr(connection, "set_schema"):
        return [Place(alias)]
    table = apps.get_model("notifications_counter", "DatabaseId")._meta.db_table
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
                "WHERE relname = %s AND relkind = 'r' ORDER BY nspname",
                [table],
            )
            return [Place(alias, name) for (name,) in cursor.fetchall()]
    except OperationalError:  # whoever works there says so
        return [Place(alias)]


def _id_of(place: Place) -> str | None:
    """The id of the database at a place. None if it has no tables, because it is not migrated, or was dropped."""
    try:
        with at(place):
            return look_up(connections[place.alias]).id
    except BufferUnavailable:
        return None
    except OperationalError:  # whoever works there says so
        return str(place)


def places(
    model: Any,
    database: str | None = None,
    schema: str | None = None,
    places_in: Callable[[str], list[Place]] = _places_in,
    id_of: Callable[[Place], str | None] = _id_of,
) -> list[Place]:
    """Where rows of a model are counted: in the database that the router names, then in every other one that has the
    app's tables. Two aliases of one database are one place. ``database`` and ``schema`` leave out all others."""
    first = alias_for(model)
    found: dict[str, Place] = {}
    for alias in dict.fromkeys([first, *connections]):
        if database not in (None, alias):
            continue
        for place in places_in(alias):
            if schema not in (None, place.schema):
                continue
            if alias != first and not place.schema and not router.allow_migrate_model(alias, model):
                continue
            id_ = id_of(place)
            if id_ or (alias == first and not place.schema):
                found.setdefault(id_ or str(place), place)
    return list(found.values())


class Workplace(NamedTuple, Generic[C]):
    """A counter at a place. Its ``name`` tells the place if there are several."""

    name: str
    counter: C
    place: Place


def workplaces(counters: Iterable[C], database: str | None = None, schema: str | None = None) -> list[Workplace[C]]:
    """Return each counter at each of its places."""
    asked = cache(_places_in), cache(_id_of)  # once for all counters
    return [work for c in counters for work in _named(c, places(c.source, database, schema, *asked))]


def workplaces_in_view(counters: Iterable[C], for_users: bool = False) -> list[Workplace[C]]:
    """Return each counter at the places that whoever asks may see: inside of a tenant its own, elsewhere all.

    ``for_users``: those who ask are users of the database that the router names. If it has counts, so that it may be
    that of a tenant, they see no other.
    """
    found: list[Workplace[C]] = []
    asked = cache(_places_in), cache(_id_of)
    for counter in counters:
        mine = here(counter.source)
        seen = [mine]
        if (mine.schema or len(list(connections)) > 1) and mine == outside(counter.source):
            seen = places(counter.source, None, None, *asked)
            if for_users and mine in seen and not mine.schema:
                seen = [mine]
        found += _named(counter, seen)
    return found


def _named(counter: C, found: list[Place]) -> list[Workplace[C]]:
    return [
        Workplace(f"{counter.name} ({place})" if len(found) > 1 else counter.name, counter, place) for place in found
    ]


@contextmanager
def at(place: Place) -> Iterator[None]:
    """Let this app work at a place. With the schema of a tenant, so does everything else on this connection."""
    with working_on(place.alias), in_schema(connections[place.alias], place.schema):
        yield
