"""System checks: what is set or declared in a way that cannot work, or not well.

Redis itself is asked only by ``manage.py check --deploy``: a missing Redis never keeps a site from starting.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import FieldDoesNotExist, FieldError
from django.db import connections
from django.db.models import (
    DO_NOTHING,
    ForeignKey,
    OneToOneField,
    QuerySet,
    Subquery,
)
from django.db.models.expressions import RawSQL
from django.db.models.sql import Query
from django.db.models.sql.where import ExtraWhere
from django.utils.module_loading import import_string
from redis.connection import AbstractConnection, parse_url

from .conf import ENTRIES, SETTING
from .counters import Counter, all_counters
from .exceptions import BufferUnavailable
from .models import BaseCount
from .sql import SUPPORTED

TAG = "notifications_counter"
REDIS_TAG = "notifications_counter_redis"

MINIMUM_VERSION = (6, 2)
"""Of Redis: the first with SET … PXAT."""

VOLATILE = {"Now", "Random", "RandomUUID", "TransactionNow"}
"""Expressions whose value changes by itself."""

Messages = Iterator[CheckMessage]


def check(tag: str, deploy: bool = False) -> Callable[[Callable[[], Messages]], Callable[..., list[CheckMessage]]]:
    """Register a generator of messages as a system check."""

    def decorate(messages: Callable[[], Messages]) -> Callable[..., list[CheckMessage]]:
        def run(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
            return list(messages())

        run.__name__ = messages.__name__
        return register(run, tag, deploy=deploy)

    return decorate


def id_(name: str) -> str:
    return f"notifications_counter.{name}"


# --------------------------------------------------------------------- settings
@check(TAG)
def check_settings() -> Messages:
    """Every entry of NOTIFICATIONS_COUNTER is known and of its type."""
    entries = getattr(settings, SETTING, {})
    if not isinstance(entries, dict):
        yield Error(f"{SETTING} is not a dict.", hint="Leave it out, or see the reference of settings.", id=id_("E001"))
        return
    for name, value in entries.items():
        if name not in ENTRIES:
            close = get_close_matches(str(name), ENTRIES, n=1) or sorted(ENTRIES)
            hint = f"Did you mean {close[0]!r}?" if len(close) == 1 else f"There are: {', '.join(close)}."
            yield Error(f"{SETTING} has an unknown entry {name!r}.", hint=hint, id=id_("E001"))
        elif not ENTRIES[name].valid(value):
            yield Error(
                f"{SETTING}[{name!r}] is {value!r}.", hint=f"Set it to {ENTRIES[name].expected}.", id=id_("E002")
            )


def _alias() -> Any:
    entries = getattr(settings, SETTING, {})
    return entries.get("CACHE_ALIAS", "default") if isinstance(entries, dict) else None


def _is_django_redis(alias: Any) -> bool:
    from django_redis.cache import RedisCache

    caches: dict[Any, Any] = settings.CACHES
    try:
        backend = import_string(caches[alias]["BACKEND"])
    except (ImportError, KeyError, TypeError):
        return False
    return isinstance(backend, type) and issubclass(backend, RedisCache)


def _options(alias: str) -> dict[str, Any]:
    caches: dict[str, Any] = settings.CACHES
    return caches[alias].get("OPTIONS") or {}


def _locations(alias: str) -> list[dict[str, Any]]:
    """What the URLs of a cache say; nothing for one that is not of Redis."""
    locations = settings.CACHES[alias].get("LOCATION") or []
    if isinstance(locations, str):
        locations = locations.replace(";", ",").split(",")
    found = []
    for location in locations:
        try:
            found.append(parse_url(location.strip()))  # type: ignore[no-untyped-call]
        except (AttributeError, ValueError):
            continue
    return found


def _places(alias: str) -> set[tuple[Any, ...]]:
    """The databases of Redis in which a cache lives."""
    places = set()
    for url in _locations(alias):
        host = url.get("host", "localhost")
        database = _options(alias).get("db", url.get("db", 0))
        places.add(
            (url.get("path"), "localhost" if host == "127.0.0.1" else host, url.get("port", 6379), int(database))
        )
    return places


@check(TAG)
def check_cache() -> Messages:
    """The cache of the buffer is of django-redis, answers in bounded time, and shares its database with no other."""
    alias = _alias()
    if not isinstance(alias, str) or alias not in settings.CACHES:
        hint = f"Add it to CACHES, or set {SETTING}['CACHE_ALIAS'] to one of: {', '.join(settings.CACHES)}."
        yield Error(f"CACHES has no entry {alias!r}, which is to hold the buffer.", hint=hint, id=id_("E003"))
        return
    if not _is_django_redis(alias):
        yield Error(
            f"The cache {alias!r}, which is to hold the buffer, is not of django-redis.",
            hint=f"Set {SETTING}['CACHE_ALIAS'] to an entry of CACHES whose BACKEND is django_redis.cache.RedisCache.",
            id=id_("E004"),
        )
        return
    if not all(_timeout(alias, url) for url in _locations(alias)):
        yield Warning(
            f"The cache {alias!r} waits for Redis without a limit.",
            hint=f"Set CACHES[{alias!r}]['OPTIONS']['SOCKET_TIMEOUT'] to a few seconds: a request is to wait no longer "
            "for a Redis that does not answer.",
            id=id_("W003"),
        )
    for other in settings.CACHES:
        if other != alias and _places(alias) & _places(other):
            yield Warning(
                f"The caches {alias!r}, which holds the buffer, and {other!r} are in the same database of Redis.",
                hint=f"clear() of either empties both, and every count is made anew from the rows. Give {alias!r} a "
                "database of its own: the number at the end of its LOCATION.",
                id=id_("W004"),
            )


def _timeout(alias: str, url: dict[str, Any]) -> Any:
    """Seconds that a reply may take. None: no limit."""
    default = inspect.signature(AbstractConnection.__init__).parameters["socket_timeout"].default
    of_pool = _options(alias).get("CONNECTION_POOL_KWARGS", {})
    return url.get("socket_timeout", of_pool.get("socket_timeout", _options(alias).get("SOCKET_TIMEOUT") or default))


@check(TAG, deploy=True)
def check_general_cache() -> Messages:
    """The buffer is not in the cache that everybody uses."""
    if _alias() == "default" and _is_django_redis("default"):
        yield Warning(
            "The default cache holds the buffer.",
            hint="cache.clear() would empty the buffer, too, and every count would be made anew from the rows. Add an "
            f"entry to CACHES with another database of Redis, and set {SETTING}['CACHE_ALIAS'] to its name.",
            id=id_("W005"),
        )


# --------------------------------------------------------------------- databases
@check(TAG)
def check_databases() -> Messages:
    """The databases of the counters are supported, and SQLite is set up for more than one process."""
    for alias in dict.fromkeys(counter.db for counter in all_counters()):
        connection: Any = connections[alias]
        if connection.vendor == "sqlite" and not connection.is_in_memory_db():
            mode = connection.settings_dict["OPTIONS"].get("transaction_mode") or "DEFERRED"
            if mode.upper() == "DEFERRED":
                yield Warning(
                    f"Transactions of the SQLite database {alias!r} do not begin with the lock to write.",
                    hint="Those that read before they write fail with 'database is locked' when another process "
                    f"writes. Set DATABASES[{alias!r}]['OPTIONS']['transaction_mode'] to 'IMMEDIATE'.",
                    id=id_("W001"),
                )
        elif connection.vendor not in SUPPORTED:
            yield Warning(
                f"The counters are not tested with the database {alias!r} ({connection.display_name}).",
                hint="PostgreSQL, MariaDB and SQLite are. Flushing takes some statements for each user here.",
                id=id_("W002"),
            )


# ---------------------------------------------------------------------- counters
@check(TAG)
def check_counters() -> Messages:
    """Every change of a count can be seen."""
    for counter in all_counters():
        try:
            counter.totals._meta.get_field(counter.field)
            counter.source._meta.get_field(counter.owner)
            fields = counter.condition.fields
        except (LookupError, FieldDoesNotExist, FieldError) as error:
            hint = "Correct the names in its declaration."
            yield Error(f"Counter {counter.name!r} names what is not there: {error}", hint=hint, id=id_("E008"))
            continue
        yield from _check_source(counter)
        yield from _check_condition(counter)
        yield from _check_on_delete(counter, fields)
        yield from _check_totals(counter)


def _check_source(counter: Counter) -> Messages:
    """Saves are counted in the table of the source, which neither a proxy nor a child of another model is."""
    owner: Any = counter.source._meta.get_field(counter.owner)
    if counter.source._meta.proxy or owner.model is not counter.source:
        yield Error(
            f"The owner of counter {counter.name!r} is no column of its source {counter.source._meta.label}.",
            hint=f"Take {owner.model._meta.label} as its source, of which proxies and children are counted, too.",
            obj=counter.source,
            id=id_("E008"),
        )


def _check_condition(counter: Counter) -> Messages:
    hint = "A counter sees changes of the rows it counts. Keep what the condition needs in columns of their own."
    query = QuerySet(counter.source).filter(counter.q).query
    nodes = list(counter.condition.expressions())
    tables = [alias for alias, uses in query.alias_refcount.items() if uses]
    if len(tables) > 1 or any(isinstance(node, Query | Subquery) for node in nodes):
        yield Error(f"The condition of counter {counter.name!r} looks at other rows.", hint=hint, id=id_("E005"))
    if any(VOLATILE.intersection(base.__name__ for base in type(node).__mro__) for node in nodes):
        yield Error(
            f"The condition of counter {counter.name!r} changes by itself, with the clock or by chance.",
            hint=hint,
            id=id_("E005"),
        )
    if any(isinstance(node, RawSQL | ExtraWhere) for node in nodes):
        yield Error(
            f"The condition of counter {counter.name!r} has raw SQL, whose columns nobody knows.",
            hint="Write it with Q and expressions.",
            id=id_("E005"),
        )


def _check_on_delete(counter: Counter, fields: frozenset[Any]) -> Messages:
    """No statement shows what the database does by itself."""
    for field in fields | {counter.source._meta.get_field(counter.owner)}:
        on_delete = getattr(field.remote_field, "on_delete", None)
        if type(on_delete).__name__ == "DatabaseOnDelete":  # from Django 6.1 on
            yield Error(
                f"Deletions set {field} behind the back of counter {counter.name!r}.",
                hint="Let Django do it: use its on_delete without DB_ before its name.",
                obj=field,
                id=id_("E006"),
            )


def _check_totals(counter: Counter) -> Messages:
    key: Any = counter.totals._meta.pk
    owner: Any = counter.source._meta.get_field(counter.owner)
    if not (
        issubclass(counter.totals, BaseCount)
        and isinstance(key, OneToOneField)
        and isinstance(owner, ForeignKey)
        and key.remote_field.model._meta.concrete_model is owner.remote_field.model._meta.concrete_model
        and key.remote_field.on_delete is DO_NOTHING
        and not key.db_constraint  # type: ignore[attr-defined]
    ):
        yield Error(
            f"{counter.totals._meta.label} cannot keep the totals of counter {counter.name!r}.",
            hint="It must be a child of BaseCount whose primary key is a OneToOneField to the model to which "
            f"{counter.owner!r} points, with on_delete=DO_NOTHING and db_constraint=False.",
            obj=counter.totals,
            id=id_("E008"),
        )


# ------------------------------------------------------------------------- Redis
@check(REDIS_TAG, deploy=True)
def check_redis() -> Messages:
    """Redis is new enough and evicts nothing that is not flushed."""
    if not _is_django_redis(_alias()):
        return
    found: dict[str, CheckMessage] = {}  # several shards may be on one node
    try:
        for counter in all_counters():
            for buffer in counter.buffers:
                found.update((message.msg, message) for message in check_server(buffer.info()))
    except BufferUnavailable as error:
        yield Warning(f"{error}", hint="Unread rows are counted in the database meanwhile.", id=id_("W006"))
    yield from found.values()


def check_server(info: Mapping[str, str]) -> Messages:
    """What is wrong with a server, of which that is the INFO."""
    version = info["redis_version"]
    if tuple(int(number) for number in version.split(".")[:2]) < MINIMUM_VERSION:
        minimum = ".".join(map(str, MINIMUM_VERSION))
        yield Error(f"Redis is too old: {version}.", hint=f"Use Redis {minimum} or newer, or Valkey.", id=id_("E009"))
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys") and info.get("maxmemory") != "0":
        yield Error(
            f"Redis may evict changes that are not flushed: maxmemory-policy is {policy}.",
            hint="Set it to noeviction, or to one of the volatile-* policies: what is not flushed never expires.",
            id=id_("E010"),
        )
