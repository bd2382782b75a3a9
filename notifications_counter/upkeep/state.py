"""The state of walks over everyone: JSON in the row of the counter, which every flusher changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from django.db.models import QuerySet

from ..models import CounterState

FULL_SPEED = "full speed"
GENTLE = "gentle"


class Claim(NamedTuple):
    """A claim on the owners ``after`` an owner key, up to the ``last`` one, made at the time ``since``."""

    after: str | None
    last: str | None
    since: float


@dataclass
class WalkState:
    """How far a walk has come, and what walks and flushes have found.

    ``speed``        of the walk that is under way; empty if none is
    ``end``          the last owner of the claimed pages, None before the first, and whether these are ``all``
    ``claims``       those that are not done, by token
    ``began``        when the walk began, in seconds since 1970, as all times
    ``rests_until``  when its next page is due
    ``wrong``        how many wrong counts walks and flushes have found so far, the last one at ``wrong_at``
    """

    speed: str = ""
    end: str | None = None
    all: bool = False
    claims: dict[str, Claim] = field(default_factory=dict)
    began: float = 0
    rests_until: float = 0
    wrong: int = 0
    wrong_at: float = 0

    @classmethod
    def of(cls, text: str) -> WalkState:
        found = cls(**json.loads(text or "{}"))
        found.claims = {token: Claim(*claim) for token, claim in found.claims.items()}
        return found

    def __str__(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    def begin(self, speed: str) -> None:
        """Begin a walk, and give up the one that is under way."""
        self.speed, self.end, self.all, self.claims = speed, None, False, {}
        self.began, self.rests_until = time.time(), 0

    def finish(self) -> None:
        """Note that the walk is complete."""
        self.speed = ""


def change_state(row: QuerySet[CounterState], change: Callable[[WalkState], None]) -> None:
    """Change the state of a walk, again if another process was faster."""
    while (text := row.values_list("walk", flat=True).first()) is not None:
        state = WalkState.of(text)
        change(state)
        if row.filter(walk=text).update(walk=str(state)):
            return
