"""Every database, and every schema of a tenant, that holds a counter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from django.apps import apps
from django.db import OperationalError, connections, router

from ..databases import in_schema, look_up
from ..declaration import Declaration, working_on
from ..exceptions import BufferUnavailable

C = TypeVar("C", bound=Declaration)


class Place(NamedTuple):
    """A database, by its alias, and in it the schema of a tenant, if a tenant library sets one."""

    alias: str
    schema: str | None = None

    def __str__(self) -> str:
        return self.schema or self.alias


def places(counter: Declaration, database: str | None = None, schema: str | None = None) -> list[Place]:
    """Where a counter is: in the database that the router names, then in every other one that has its tables. Two
    aliases of one database are one place. ``database`` and ``schema`` leave out all others."""
    first = counter.db
    found: dict[str, Place] = {}
    for alias in dict.fromkeys([first, *connections]):
        if database not in (None, alias):
            continue
        for place in _places_in(alias):
            if schema not in (None, place.schema):
                continue
            if alias != first and not place.schema and not router.allow_migrate_model(alias, counter.source):
                continue
            try:
                with at(place):
                    id_ = look_up(connections[alias]).id
            except BufferUnavailable:
                if alias != first or place.schema:  # not migrated, or dropped
                    continue
                id_ = str(place)
            except OperationalError:  # whoever works there says so
                id_ = str(place)
            found.setdefault(id_, place)
    return list(found.values())


def _places_in(alias: str) -> list[Place]:
    connection: Any = connections[alias]
    if not hasattr(connection, "set_schema"):
        return [Place(alias)]
    table = apps.get_model("notifications_counter", "DatabaseId")._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
            "WHERE relname = %s AND relkind = 'r' ORDER BY nspname",
            [table],
        )
        return [Place(alias, name) for (name,) in cursor.fetchall()]


class Workplace(NamedTuple, Generic[C]):
    """A counter at a place. Its ``name`` tells the place if there are several."""

    name: str
    counter: C
    place: Place


def workplaces(counters: Iterable[C], database: str | None = None, schema: str | None = None) -> list[Workplace[C]]:
    """Return each counter at each of its places."""
    found: list[Workplace[C]] = []
    for counter in counters:
        all_ = places(counter, database, schema)
        found += [Workplace(f"{counter.name} ({p})" if len(all_) > 1 else counter.name, counter, p) for p in all_]
    return found


@contextmanager
def at(place: Place) -> Iterator[None]:
    """Let every counter work at a place. With the schema of a tenant, so does everything else on this connection."""
    with working_on(place.alias), in_schema(connections[place.alias], place.schema):
        yield
