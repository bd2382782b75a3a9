"""The LOCATION of a cache: its URLs, and the passwords that no message, log or traceback may show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from django.conf import settings
from redis.connection import parse_url

HOW_TO_WRITE = (
    "Use a URL such as 'redis://127.0.0.1:6379/1'. Percent-encode special characters in its user name and password, as "
    "urllib.parse.quote(password, safe='') does."
)

HIDDEN = "***"

IN_URL = re.compile(r"://(?:[^/?#@:]*:)?(.+)@|[?&]password=([^&#]+)")
"""Matches the password in a URL. One that is not percent-encoded may contain any character."""

ARGUMENTS = re.compile(r"(with args beginning with:).*", re.DOTALL)
"""Matches the arguments that a server repeats when it does not know a command, such as HELLO with a password."""


def urls_of(alias: str) -> list[Any]:
    """Return the URLs of a cache, as the site wrote them."""
    location = settings.CACHES[alias].get("LOCATION") or ""
    return re.split("[,;]", location) if isinstance(location, str) else list(location)


def parse(url: Any) -> dict[str, Any] | None:
    """Return a URL as arguments of a connection. None if it is not the URL of a Redis, or if its host is really the
    beginning of a password with ``/``, ``?`` or ``#``."""
    try:
        arguments: dict[str, Any] = parse_url(url.strip())  # type: ignore[no-untyped-call]
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


def _secrets(about: Any, name: str) -> Iterator[str]:
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
