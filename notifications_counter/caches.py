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

TIMEOUTS = "SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT"

PRIVATE = re.compile(r"<redis\..*>|(?<=with args beginning with:).*", re.DOTALL)
"""Matches what may hold a password in an error: the client of a Sentinel, which redis-py 6 and 7 show with all its
arguments, and the arguments that a server repeats when it does not know a command, such as HELLO."""


class SiteCache:
    """An entry of CACHES.

    ``options``  its OPTIONS
    ``urls``     what each URL of a django-redis cache says of a connection, None for one that is wrong
    """

    def __init__(self, alias: str):
        entry: SettingsDict = settings.CACHES.get(alias, {}) if isinstance(alias, str) else {}
        self.alias = alias
        self.options: SettingsDict = entry.get("OPTIONS") or {}
        self.is_django_redis = issubclass(_class(entry.get("BACKEND", "")), RedisCache)
        location = (self.is_django_redis and entry.get("LOCATION")) or ""
        self.urls = [parse(url) for url in (re.split("[,;]", location) if isinstance(location, str) else location)]

    @property
    def problem(self) -> tuple[str, str] | None:
        """Why the counters cannot use it, and what to do; None if they can."""
        if not self.is_django_redis:
            return (
                f"The counters use the cache {shown(self.alias)}, which is not a django-redis cache in CACHES.",
                f"Set {SETTING}['CACHE_ALIAS'] to an entry of CACHES with the BACKEND "
                "'django_redis.cache.RedisCache' and a LOCATION such as 'redis://127.0.0.1:6379/1'.",
            )
        if None in self.urls:
            return f"The LOCATION of the cache {self.alias!r} is not the URL of a Redis.", HOW_TO_WRITE
        name = self.options.get("CLIENT_CLASS") or "django_redis.client.DefaultClient"
        client = _class(name)
        if issubclass(client, ShardClient) or not issubclass(client, DefaultClient):
            return (
                f"The counters cannot use the cache {self.alias!r} with the CLIENT_CLASS {name!r}.",
                "Remove CLIENT_CLASS, or use DefaultClient, HerdClient or SentinelClient of django_redis.client. For "
                "several servers, use a Redis Cluster: a ShardClient cannot keep related keys on one server.",
            )
        for name in TIMEOUTS:
            if not all(isinstance(seconds, int | float) for seconds in self.timeouts(name)):
                return (
                    f"{name} of the cache {self.alias!r} is not a number.",
                    "Set it to a number of seconds, such as 0.1.",
                )
        return None

    def timeouts(self, name: str) -> list[float]:
        """Return a timeout in seconds for each URL, 0 if it is not set."""
        of_pool = self.options.get("CONNECTION_POOL_KWARGS", {})
        default = of_pool.get(name.lower()) or self.options.get(name) or 0
        return [url.get(name.lower()) or default for url in self.urls if url is not None]


def _class(name: str) -> type:
    """Return the class of this name, or ``object`` if it does not exist."""
    with suppress(ImportError):
        if isinstance(found := import_string(name), type):
            return found
    return object


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
