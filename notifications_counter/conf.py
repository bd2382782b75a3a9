"""The one settings dict, ``NOTIFICATIONS_COUNTER``, read live.

``options.FLUSH_CHUNK`` is the value in force; ``ENTRIES`` says what each entry means and which values it takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver

SETTING = "NOTIFICATIONS_COUNTER"


def _positive_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _minute(value: Any) -> bool:
    return _seconds(value) and value >= 60


def _name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and not set(value) & set("{}")


def _precisions(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(_positive_int(precision) and precision <= 2_678_400 for precision in value)
        and len(set(value)) == len(value)
    )


def _names(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )


def _samples(value: Any) -> bool:
    return _positive_int(value) and value <= 10_000


def _bool(value: Any) -> bool:
    return isinstance(value, bool)


@dataclass(frozen=True)
class Entry:
    default: Any
    valid: Callable[[Any], bool]
    expected: str


ENTRIES = {
    "CACHE_ALIAS": Entry("default", _name, "the name of a cache in CACHES"),
    "KEY_PREFIX": Entry("nc", _name, "a non-empty string without braces"),
    "SHARDS": Entry(1, _positive_int, "a positive integer"),
    "TOTAL_TTL": Entry(86400, _positive_int, "a positive integer, in seconds"),
    "FLUSH_CHUNK": Entry(20_000, _positive_int, "a positive integer"),
    "HEAL_AFTER": Entry(60, _seconds, "a non-negative number of seconds"),
    "MAX_TRANSACTION_AGE": Entry(3600, _minute, "a number of seconds, at least 60"),
    "DEPLOY_SECONDS": Entry(300, _seconds, "a non-negative number of seconds"),
    "RETRY_AFTER": Entry(5, _seconds, "a non-negative number of seconds"),
    "PRECISIONS": Entry(
        (1, 5, 60, 300, 3600, 18000, 86400),
        _precisions,
        "a list of distinct integers from 1 to 2678400 (31 days), in seconds",
    ),
    "SAMPLES": Entry(120, _samples, "an integer from 1 to 10000"),
    "RECORD_EVENTS": Entry(True, _bool, "True or False"),
    "RECORD_ACTIVITY": Entry(False, _bool, "True or False"),
    "NOTIFICATIONS": Entry(True, _bool, "True or False"),
    "COUNTERS": Entry(("unread",), _names, "a list of distinct names"),
}


class Options:
    """Attribute access to the entries in force."""

    CACHE_ALIAS: str
    KEY_PREFIX: str
    SHARDS: int
    TOTAL_TTL: int
    FLUSH_CHUNK: int
    HEAL_AFTER: float
    MAX_TRANSACTION_AGE: float
    DEPLOY_SECONDS: float
    RETRY_AFTER: float
    PRECISIONS: Sequence[int]
    SAMPLES: int
    RECORD_EVENTS: bool
    RECORD_ACTIVITY: bool
    NOTIFICATIONS: bool
    COUNTERS: Sequence[str]

    @cached_property
    def _entries(self) -> dict[str, Any]:
        """The dict, looked up once: Django raises and catches an exception each time a setting is missing."""
        entries = getattr(settings, SETTING, None)
        return entries if isinstance(entries, dict) else {}  # a system check reports anything else

    def is_set(self, name: str) -> bool:
        """Return whether the site sets this entry, and not its default holds."""
        return name in self._entries

    def __getattr__(self, name: str) -> Any:
        if name not in ENTRIES:
            raise AttributeError(name)
        return self._entries.get(name, ENTRIES[name].default)


options = Options()


@receiver(setting_changed)
def _forget_entries(*, setting: str, **_: Any) -> None:
    if setting == SETTING:
        vars(options).pop("_entries", None)


def swappable() -> str | None:
    """``Meta.swappable`` of ``Notification``, its totals and its imports. Without NOTIFICATIONS they are swapped out,
    so that Django gives them no table, no relation and no admin. AUTH_USER_MODEL is the one such setting that every
    site has."""
    return None if options.NOTIFICATIONS else "AUTH_USER_MODEL"
