"""The caches of the site: whether the counters can use one, its URLs, and the passwords that no message, log or
traceback may show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

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

HIDDEN = "***"

IN_URL = re.compile(r"://(?:[^/?#@:]*:)?(.+)@|[?&]password=([^&#]+)")
"""Matches the password in a URL. One that is not percent-encoded may contain any character."""

ARGUMENTS = re.compile(r"(with args beginning with:).*", re.DOTALL)
"""Matches the arguments that a server repeats when it does not know a command, such as HELLO with a password."""


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
    """Return a URL as arguments of a connection. None if it is not the URL of a Redis, or if its host is really the
    beginning of a password with ``/``, ``?`` or ``#``."""
    try:
        arguments: SettingsDict = parse_url(url.strip())  # type: ignore[no-untyped-call]
    except (AttributeError, ValueError):
        return None
    parts = urlsplit(url.strip())
    if parts.scheme == "unix":
        is_cut_short = parts.netloc.rpartition("@")[2] != ""
    else:
        is_cut_short = "@" in parts.path + parts.query.partition("=")[0] + parts.fragment
    return None if is_cut_short else arguments


def reason_of(error: BaseException, alias: str) -> str:
    """Return the message of an error of redis-py, without the passwords of a cache."""
    text = str(error)
    for secret in sorted(set(_secrets(settings.CACHES.get(alias), "")), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return ARGUMENTS.sub(rf"\1 {HIDDEN}", text)


def _secrets(about: object, name: str) -> Iterator[str]:
    """Yield each password in the part of CACHES under ``name``, as it is written and as it is sent."""
    if isinstance(about, Mapping):
        for key, value in about.items():
            yield from _secrets(value, str(key))
    elif isinstance(about, list | tuple):
        for value in about:
            yield from _secrets(value, name)
    elif isinstance(about, bytes):
        yield from _secrets(about.decode(errors="replace"), name)
    elif isinstance(about, str) and about:
        if "password" in name.lower():
            yield about
        for url in {about, *re.split("[,;]", about)}:  # LOCATION may be several in one
            for found in IN_URL.finditer(url):
                yield from (found[1] or found[2], unquote(found[1] or found[2]))
