"""The caches of the site: whether the counters can use one, its URLs, and the passwords that no message, log or
traceback may show."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache
from django_redis.client import DefaultClient, ShardClient
from redis.connection import parse_url

from .conf import SETTING, shown

SettingsDict = dict[str, Any]
"""An entry of CACHES or DATABASES, or its OPTIONS, or a URL as such options."""

HOW_TO_WRITE = (
    "Use a URL such as 'redis://127.0.0.1:6379/1'. Percent-encode special characters in its user name and password, as "
    "urllib.parse.quote(password, safe='') does."
)

PRIVATE = re.compile(r"<redis\..*>|(?<=with args beginning with:).*", re.DOTALL)
"""Matches what may hold a password in an error: the client of a Sentinel, which redis-py 6 and 7 show with all its
arguments, and the arguments that a server repeats when it does not know a command, such as HELLO."""


def problem_of(alias: str) -> tuple[str, str] | None:
    """Return why the counters cannot use a cache, and what to do; None if they can."""
    if not is_django_redis(alias):
        return (
            f"The counters use the cache {shown(alias)}, which is not a django-redis cache in CACHES.",
            f"Set {SETTING}['CACHE_ALIAS'] to an entry of CACHES with the BACKEND "
            "'django_redis.cache.RedisCache' and a LOCATION such as 'redis://127.0.0.1:6379/1'.",
        )
    if None in map(parse, urls_of(alias)):
        return f"The LOCATION of the cache {alias!r} is not the URL of a Redis.", HOW_TO_WRITE
    name = options_of(alias).get("CLIENT_CLASS") or "django_redis.client.DefaultClient"
    client = _class(name)
    if issubclass(client, ShardClient) or not issubclass(client, DefaultClient):
        return (
            f"The counters cannot use the cache {alias!r} with the CLIENT_CLASS {name!r}.",
            "Remove CLIENT_CLASS, or use DefaultClient, HerdClient or SentinelClient of django_redis.client. For "
            "several servers, use a Redis Cluster: a ShardClient cannot keep related keys on one server.",
        )
    return None


def is_django_redis(alias: str) -> bool:
    """Return whether this is the alias of a django-redis cache."""
    with suppress(KeyError, TypeError):
        return issubclass(_class(_entry(alias)["BACKEND"]), RedisCache)
    return False


def options_of(alias: str) -> SettingsDict:
    """Return the OPTIONS of a cache."""
    return _entry(alias).get("OPTIONS") or {}


def _entry(alias: str) -> SettingsDict:
    caches: dict[str, SettingsDict] = settings.CACHES
    return caches[alias]


def _class(name: str) -> type:
    """Return the class of this name, or ``object`` if it does not exist."""
    with suppress(ImportError):
        found = import_string(name)
        return found if isinstance(found, type) else object
    return object


def urls_of(alias: str) -> list[str]:
    """Return the URLs of a cache, as the site wrote them."""
    location = _entry(alias).get("LOCATION") or ""
    return re.split("[,;]", location) if isinstance(location, str) else list(location)


def parse(url: str) -> SettingsDict | None:
    """Return a URL as arguments of a connection. None if it is not the URL of a Redis, or has an ``@`` behind the host:
    then that host is the beginning of a password with ``/``, ``?`` or ``#``."""
    try:
        arguments: SettingsDict = parse_url(url.strip())  # type: ignore[no-untyped-call]
    except (AttributeError, ValueError):
        return None
    _scheme, _netloc, *rest = urlsplit(url.strip())
    return None if "@" in "".join(rest) else arguments


def reason_of(error: BaseException) -> str:
    """Return the message of an error of redis-py, without passwords."""
    return PRIVATE.sub("***", str(error))
