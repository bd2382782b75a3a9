"""Checks that ask Redis and the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, Error, connections
from django.db.models import CharField, Field, TextField

from ..buffer.buffer import IDENTITY_FIELDS
from ..caches import SiteCache
from ..conf import options
from ..counters import Counter
from ..databases.identity import identify
from ..exceptions import BufferUnavailable
from ..models.fields import exact_collation, target_of
from ..redis.client import client_of
from .counters import sound_counters
from .messages import TAG, Messages, error, warning

Databases = Sequence[str] | None
"""The aliases of the databases to ask."""


def counters_in(databases: Databases) -> list[Counter]:
    return [counter for counter in sound_counters() if counter.db in (databases or ())]


def infos(databases: Databases) -> list[dict[str, Any]]:
    """Return INFO of each server of the counters' cache, if one of these databases has counters. BufferUnavailable if
    a server is unreachable."""
    if SiteCache(options.CACHE_ALIAS).problem or not counters_in(databases):
        return []
    return client_of(options.CACHE_ALIAS).infos()


@register(TAG, Tags.database)
def check_redis(databases: Databases, **_: object) -> Messages:
    """Check that Redis is there. `migrate` asks this as well."""
    try:
        infos(databases)
    except BufferUnavailable as failure:
        yield warning(
            "W004",
            str(failure),
            "Start Redis, or correct the LOCATION of the cache. Rows are counted meanwhile.",
        )


@register(TAG, Tags.database, deploy=True)
def check_servers(databases: Databases, **_: object) -> Messages:
    """Check that Redis evicts no changes, and has a name."""
    try:
        found = infos(databases)
    except BufferUnavailable:
        return  # another check reports it
    yield from {message.msg: message for info in found for message in check_server(info)}.values()


def check_server(info: dict[str, Any]) -> Messages:
    """Check the INFO of a server."""
    if missing := [name for name in IDENTITY_FIELDS if not info.get(name)]:
        yield warning(
            "W005",
            f"Redis does not report its {' and '.join(missing)}, so the app may not notice that a restart or a "
            "failover has brought back older data.",
            "Allow the command INFO. If that is not possible, run `manage.py recount_counters --restored` after each "
            "restart and failover.",
        )
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys") and int(info.get("maxmemory", 1)):
        yield error(
            "E009",
            f"Redis may evict changes that are not flushed yet, because its maxmemory-policy is {policy}.",
            "Set maxmemory-policy to noeviction, or to one of the volatile-* policies.",
        )


@register(TAG, Tags.database, deploy=True)
def check_aliases(databases: Databases, **_: object) -> Messages:
    """Check that each database of the counters has one alias. Its id tells, whatever address and options lead to it."""
    for alias in dict.fromkeys(counter.db for counter in counters_in(databases)):
        for other in connections:
            is_mirror = connections[other].settings_dict["TEST"]["MIRROR"] == alias
            if other != alias and not is_mirror and _id_of(other) == _id_of(alias) != "":
                yield error(
                    "E007",
                    f"{other!r} in DATABASES is the same database as {alias!r}, whose rows are counted. Rows that are "
                    f"written through {other!r} are not counted.",
                    f"Write through {alias!r} and remove {other!r}. If {other!r} is only read from, set "
                    f"DATABASES[{other!r}]['TEST'] to {{'MIRROR': {alias!r}}}.",
                )


def _id_of(alias: str) -> str:
    """Return the id of a database; empty if it has none, or is unreachable."""
    try:
        return identify(connections[alias]).id
    except (Error, ImproperlyConfigured):
        return ""
    finally:
        connections[alias].close_if_unusable_or_obsolete()


@register(TAG, Tags.database, deploy=True)
def check_collations(databases: Databases, **_: object) -> Messages:
    """Check that the database distinguishes all texts of owners."""
    for counter in counters_in(databases):
        for field in (*counter.owner_fields, *counter.total_fields):
            if isinstance(target_of(field), CharField | TextField) and not _distinguishes_texts(field, counter.db):
                yield warning(
                    "W006",
                    f"The database {counter.db!r} takes different strings in {field} for equal, so counter "
                    f"{counter.name!r} may count them as one owner in one place, and as several in another.",
                    "Give the owner's columns, and what they refer to, a collation that compares characters exactly: "
                    f"db_collation={exact_collation(connections[counter.db])!r}. If the owner is a single foreign "
                    "key, it is enough to pass owners as instances, never as strings.",
                    field,
                )


def _distinguishes_texts(field: Field, using: str) -> bool:
    """Return whether similar texts differ in a column. UNION uses its collation."""
    quote, texts = connections[using].ops.quote_name, ("a", "A", "a ", "\u00e1")
    column = f"SELECT {quote(str(field.column))} FROM {quote(field.model._meta.db_table)} WHERE 1 = 0"
    try:
        with connections[using].cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM ({' UNION '.join([column, *['SELECT %s'] * len(texts)])}) t", texts)
            return cursor.fetchone()[0] == len(texts)
    except DatabaseError:  # its table is not made yet
        return True
