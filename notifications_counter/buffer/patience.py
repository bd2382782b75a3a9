"""How long the site waits for Redis. The flusher waits for as long as the settings of the cache say."""

from __future__ import annotations

import weakref
from contextvars import ContextVar, Token
from typing import Any

QUICK = 0.1
"""A reply that takes less than this share of the limit is free, so work that needs many replies may take long."""


class Patience:
    """A context in which Redis has ``seconds`` for each reply, and then counts as down. Once the replies together have
    taken longer, nothing more is sent. Time for anything else, such as a query, does not count.

    Inside a context with less patience, it changes nothing.

    ``free``  seconds that a reply may take without being noted
    ``left``  seconds for all replies
    """

    __slots__ = ("seconds", "free", "left", "_token", "__weakref__")

    def __init__(self, seconds: float):
        self.seconds = self.left = seconds
        self.free = QUICK * seconds

    def __enter__(self) -> None:
        outer = current.get()()
        inner = self if outer is None or outer.seconds >= self.seconds else outer
        self._token: Token[weakref.ref[Patience]] = current.set(weakref.ref(inner))

    def __exit__(self, *_: Any) -> None:
        current.reset(self._token)

    def spend(self, seconds: float) -> None:
        """Note how long a reply took."""
        self.left -= max(0.0, seconds - self.free)


GONE = weakref.ref(Patience(0))
current: ContextVar[weakref.ref[Patience]] = ContextVar("patience", default=GONE)
"""A reference to the patience of this context, if any. It is weak, because an exception may strike in ``__exit__``:
then the patience that stays behind has no effect."""


def limit() -> float | None:
    """Return how many seconds Redis has for a reply; None without a limit."""
    patience = current.get()()
    return None if patience is None else patience.seconds
