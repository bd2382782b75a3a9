"""The state of walks over everyone: JSON in the row of the counter, which every flusher changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from uuid import uuid4

from django.db.models import QuerySet

from ..models import CounterState

FULL_SPEED = "full speed"
GENTLE = "gentle"


@dataclass
class WalkState:
    """How far a walk has come.

    ``id``           of the last walk
    ``speed``        of the walk that is under way; empty if none is
    ``end``          the last owner of the pages that are done, None before the first
    ``began``        when the walk began, in seconds since 1970, as all times
    ``rests_until``  when its next page is due
    """

    id: str = ""
    speed: str = ""
    end: str | None = None
    began: float = 0
    rests_until: float = 0

    @classmethod
    def of(cls, text: str) -> WalkState:
        return cls(**json.loads(text or "{}"))

    def __str__(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    def begin(self, speed: str) -> bool:
        """Begin a walk, and give up the one that is under way. Returns True, for ``change_state``."""
        self.id, self.speed, self.end = uuid4().hex[:12], speed, None
        self.began, self.rests_until = time.time(), 0
        return True


def change_state(row: QuerySet[CounterState], change: Callable[[WalkState], bool]) -> bool:
    """Change the state of a walk, again if another process was faster. Returns whether it was changed: not if
    ``change`` returns False."""
    while (text := row.values_list("walk", flat=True).first()) is not None:
        state = WalkState.of(text)
        if not change(state):
            return False
        if row.filter(walk=text).update(walk=str(state)):
            return True
    return False
