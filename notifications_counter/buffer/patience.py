"""How long the site waits for Redis. The flusher waits for as long as the settings of the cache say."""

from __future__ import annotations

import weakref
from contextvars import ContextVar, Token
from typing import Any

QUICK = 0.1
"""A reply that takes less than this share of the limit is free: what needs many replies may take long for that."""

_current: ContextVar[weakref.ref[Patience] | None] = ContextVar("patience", default=None)
"""Weak, because an exception may strike in ``__exit__``: what is left behind then has no effect."""


class Patience:
    """Inside, Redis has ``seconds`` for each reply, and then it counts as down. Once the replies together have taken
    longer, nothing more is sent. Time for anything else, such as a query, does not count.

    One that is entered inside another with less patience changes nothing.
    """

    __slots__ = ("seconds", "_left", "_token", "__weakref__")

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._left = seconds

    def __enter__(self) -> None:
        outer = current()
        inner = outer if outer is not None and outer.seconds < self.seconds else self
        self._token: Token[weakref.ref[Patience] | None] = _current.set(weakref.ref(inner))

    def __exit__(self, *_: Any) -> None:
        _current.reset(self._token)

    def spend(self, seconds: float) -> None:
        """Note how long a reply took."""
        self._left -= max(0.0, seconds - QUICK * self.seconds)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._left <= 0


def current() -> Patience | None:
    """Return the patience that this code is inside of. None: there is no limit."""
    patience = _current.get()
    return None if patience is None else patience()


def limit() -> float | None:
    """Return how many seconds Redis has for a reply. None: there is no limit."""
    patience = current()
    return None if patience is None else patience.seconds
