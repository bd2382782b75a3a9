"""The one settings dict, ``NOTIFICATIONS_COUNTER``, read live.

``options.FLUSH_CHUNK`` is the value in force; ``ENTRIES`` says what each entry means and which values it takes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.conf import settings

SETTING = "NOTIFICATIONS_COUNTER"


def _positive_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and not set(value) & set("{}")


@dataclass(frozen=True)
class Entry:
    default: Any
    valid: Callable[[Any], bool]
    expected: str


ENTRIES = {
    "CACHE_ALIAS": Entry("default", _name, "the name of an entry of CACHES"),
    "KEY_PREFIX": Entry("nc", _name, "a text that is not empty, without braces"),
    "SHARDS": Entry(1, _positive_int, "a whole number of at least 1"),
    "TOTAL_TTL": Entry(86400, _positive_int, "a whole number of seconds, at least 1"),
    "FLUSH_CHUNK": Entry(5000, _positive_int, "a whole number of users, at least 1"),
    "HEAL_AFTER": Entry(60, _seconds, "a number of seconds, not negative"),
    "MAX_TRANSACTION_AGE": Entry(3600, _seconds, "a number of seconds, not negative"),
    "RETRY_AFTER": Entry(5, _seconds, "a number of seconds, not negative"),
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
    RETRY_AFTER: float

    def __getattr__(self, name: str) -> Any:
        if name not in ENTRIES:
            raise AttributeError(name)
        return self.read(name)[0]

    def read(self, *names: str) -> list[Any]:
        """Several entries, faster than one by one."""
        given = getattr(settings, SETTING, {})
        return [given[name] if name in given else ENTRIES[name].default for name in names]


options = Options()
