"""Checks that ask Redis and the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.core.checks import Error, Tags, Warning
from django.db import connections
from django.db.models import CharField, TextField

from ..buffer.buffer import IDENTITY
from ..buffer.location import reason_of
from ..conf import options
from ..counters import Counter
from ..declaration.owners import target_of
from ..internals import redis_py
from .registration import TAG, Messages, check, id_, sound_counters
from .settings import addresses, check_cache
from .tables import missing_tables


def _has_counters(databases: Iterable[str]) -> bool:
    """Return whether one of these databases has counters, and their cache is one that can be asked."""
    is_asked = any(counter.db in databases for counter in sound_counters())
    return is_asked and not any(message.is_serious() for message in check_cache())


@check(TAG, Tags.database)
def check_redis(databases: Iterable[str]) -> Messages:
    """Check that Redis is there. `migrate` asks this as well."""
    if _has_counters(databases):
        try:
            list(_infos())
        except (redis_py().RedisError, OSError) as error:
            yield Warning(
                f"Redis (cache {options.CACHE_ALIAS!r}) is unreachable: {reason_of(error, options.CACHE_ALIAS)}",
                hint=f"The cache is at {addresses(options.CACHE_ALIAS)}: start Redis there, or correct its LOCATION. "
                "Rows are counted meanwhile.",
                id=id_("W004"),
            )


@check(TAG, Tags.database, deploy=True)
def check_redis_servers(databases: Iterable[str]) -> Messages:
    """Check that Redis evicts no changes, and has a name."""
    if _has_counters(databases):
        try:
            found = [message for info in _infos() for message in check_server(info)]
        except (redis_py().RedisError, OSError):
            return  # another check reports it
        yield from {message.msg: message for message in found}.values()


def _infos() -> Iterator[Mapping[str, Any]]:
    """Yield the INFO of each server, empty if it refuses it."""
    from django_redis import get_redis_connection

    redis = get_redis_connection(options.CACHE_ALIAS)
    try:
        if isinstance(redis, redis_py().RedisCluster):
            yield from redis.info(target_nodes="primaries").values()
        else:
            yield redis.info()
    except redis_py().ResponseError:
        redis.ping()
        yield {}


def check_server(info: Mapping[str, Any]) -> Messages:
    """Check the INFO of a server."""
    if missing := [name for name in IDENTITY if not info.get(name)]:
        yield Warning(
            f"Redis does not report its {' and '.join(missing)}, so the app may not notice that a restart or a "
            "failover has brought back older data.",
            hint="Allow the command INFO. If that is not possible, run `manage.py recount_counters --restored` after "
            "each restart and failover.",
            id=id_("W005"),
        )
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys") and int(info.get("maxmemory", 1)):
        yield Error(
            f"Redis may evict changes that are not flushed yet, because its maxmemory-policy is {policy}.",
            hint="Set maxmemory-policy to noeviction, or to one of the volatile-* policies.",
            id=id_("E009"),
        )


@check(TAG, Tags.database, deploy=True)
def check_collations(databases: Iterable[str]) -> Messages:
    """Check that the database distinguishes all texts of owners. For deployments only: `migrate` runs database checks
    before it makes the tables."""
    for counter in sound_counters():
        if counter.db in databases and not missing_tables(counter.db):
            for field in (*counter.owner_fields, *counter.total_fields):
                if isinstance(target_of(field), CharField | TextField) and not _distinguishes_texts(field, counter.db):
                    yield Warning(
                        f"The database {counter.db!r} takes different strings in {field} for equal, so counter "
                        f"{counter.name!r} may count them as one owner in one place, and as several in another.",
                        hint=_hint_on_collations(counter),
                        obj=field,
                        id=id_("W006"),
                    )


def _hint_on_collations(counter: Counter) -> str:
    columns = (
        "each of these columns" if counter.has_several_columns else "the owner's primary key and what refers to it"
    )
    hint = (
        f"Give {columns} a collation that compares characters exactly, such as db_collation='utf8mb4_nopad_bin' on "
        "MariaDB or 'utf8mb4_0900_bin' on MySQL."
    )
    return hint if counter.has_several_columns else f"{hint} Or always pass owners as instances, never as strings."


def _distinguishes_texts(field: Any, using: str) -> bool:
    """Return whether similar texts differ in a column. UNION uses its collation."""
    quote, texts = connections[using].ops.quote_name, ("a", "A", "a ", "\u00e1")
    column = f"SELECT {quote(field.column)} FROM {quote(field.model._meta.db_table)} WHERE 1 = 0"
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM ({' UNION '.join([column, *['SELECT %s'] * len(texts)])}) t", texts)
        return cursor.fetchone()[0] == len(texts)
