"""The one settings dict, ``NOTIFICATIONS_COUNTER``. Each entry is read once, until ``override_settings`` changes it.

``options.TOTAL_TTL`` is the value in force; ``Options`` says what each entry means and which values it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from functools import cached_property, partial
from typing import Any, Generic, TypeGuard, TypeVar

from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver

SETTING = "NOTIFICATIONS_COUNTER"

BUILT_IN_COUNTERS = ("unread", "unseen", "unread_by_kind")
"""The counters of notifications, of which COUNTERS names those to use."""

T = TypeVar("T")


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is an int. True, False and members of an Enum are not: their ``str()`` may be a name."""
    return isinstance(value, int) and not isinstance(value, bool | Enum)


def shown(value: object) -> str:
    """Return a value for a message. Hides one that may hold a password, such as a cache's URL in place of its name."""
    text = repr(value)
    return f"this {type(value).__name__}" if "://" in text or "pass" in text.lower() else text


def _positive(value: object) -> bool:
    return is_integer(value) and value > 0


def is_seconds(value: object, least: int = 0) -> bool:
    """Return whether a value is a number of seconds, at least ``least``."""
    return (is_integer(value) or isinstance(value, float)) and least <= value < math.inf


def is_name(value: object) -> bool:
    """Return whether a value can be a part of keys in Redis."""
    return isinstance(value, str) and value != "" and value.isprintable() and not set(value) & set("{}")


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _counters(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        name in BUILT_IN_COUNTERS and value.count(name) == 1 for name in value
    )


def _texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for pair in value.items() for text in pair)


@dataclass
class Entry(Generic[T]):
    """An entry of the settings dict, as an attribute of ``options``."""

    default: T
    valid: Callable[[object], bool]
    expected: str
    name: str = field(init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, options: Options, owner: type) -> T:
        value: T = options.entries.get(self.name, self.default)
        return value


class Options:
    """The entries in force, each with its default, a test of its values, and that test in words."""

    ENABLED = Entry(True, _flag, "True or False")
    CACHE_ALIAS = Entry("default", is_name, "the name of a cache in CACHES")
    KEY_PREFIX = Entry("nc", is_name, "a non-empty string without braces or control characters")
    TOTAL_TTL = Entry(86400, _positive, "a positive integer, in seconds")
    HEAL_AFTER = Entry[float](60, is_seconds, "a non-negative number of seconds")
    MAX_TRANSACTION_AGE = Entry[float](3600, partial(is_seconds, least=60), "a number of seconds, at least 60")
    DEPLOY_SECONDS = Entry[float](300, is_seconds, "a non-negative number of seconds")
    WALK_SECONDS = Entry[float](86400, is_seconds, "a non-negative number of seconds")
    RETRY_AFTER = Entry[float](5, is_seconds, "a non-negative number of seconds")
    ICONS = Entry[Mapping[str, str]]({}, _texts, "a dict of kinds and their icons: texts, or paths of static files")
    COUNTERS = Entry[Sequence[str]](
        ("unread",),
        _counters,
        f"a list of distinct names of built-in counters ({', '.join(BUILT_IN_COUNTERS)})",
    )

    @cached_property
    def entries(self) -> dict[str, Any]:
        """The dict, looked up once: Django raises and catches an exception each time a setting is missing."""
        entries = getattr(settings, SETTING, None)
        return entries if isinstance(entries, dict) else {}  # a system check reports anything else

    def is_set(self, name: str) -> bool:
        """Return whether the site sets this entry itself."""
        return name in self.entries


ENTRIES: dict[str, Entry[Any]] = {name: entry for name, entry in vars(Options).items() if isinstance(entry, Entry)}


def mistakes(entries: object) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a value of the setting, and what to do."""
    if not isinstance(entries, dict):
        yield f"The value of {SETTING} must be a dict, not {shown(entries)}.", "Write it as a dict."
        return
    for name, value in entries.items():
        if name not in ENTRIES:
            close = get_close_matches(str(name), ENTRIES, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"The known entries are: {', '.join(sorted(ENTRIES))}."
            yield f"The {SETTING} setting has an unknown entry {name!r}.", hint
        elif not ENTRIES[name].valid(value):
            fact = f"The value of {SETTING}[{name!r}] must be {ENTRIES[name].expected}, not {shown(value)}."
            yield fact, "Correct it, or remove it to use the default."


options = Options()


@receiver(setting_changed)
def _forget_entries(*, setting: str, **_: object) -> None:
    if setting == SETTING:
        options.__dict__ = {}  # a value that another thread is about to store goes into the old one
