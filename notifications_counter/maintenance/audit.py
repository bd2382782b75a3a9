"""An audit: everyone is recounted, in slices of the order of primary keys, which flushers share.

The row of a shard says up to where slices have been claimed, and which of them are not done. Flushers claim a slice,
and note that the one before is done, by an UPDATE that succeeds only if the row still says what they have read or
written. A slice whose flusher was killed is taken over by another one in the end. If the first one was only slow, that
costs work, and nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from uuid import uuid4

from django.db.models import QuerySet

from ..conf import options
from ..declaration import Declaration
from ..sql.everyone import Page
from . import recount
from .history import record_event
from .recount import Recounter, RecountResult
from .shards import shard_rows

SLOW = 10
"""Seconds after which a slice that somebody else has claimed is taken over, or HEAL_AFTER if that is less. Safety does
not depend on it."""


@dataclass
class Progress:
    """How far the audit of a shard has come: the ``end`` of the slices that were claimed, whether these are ``all``,
    and those that are not done, each with the position before it, its last one, and when it was claimed; ``at`` is the
    time of the last step. Times are seconds of the Redis clock."""

    end: str = ""
    all: bool = False
    claimed: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    at: int = 0

    @classmethod
    def of(cls, text: str) -> Progress:
        """Return what the row of a shard says."""
        return cls(**json.loads(text)) if text.startswith("{") else cls(text)

    def __str__(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


class Audit:
    """An audit of some shards, each in the epoch that Redis is in."""

    def __init__(
        self,
        counter: Declaration,
        recounter: Recounter,
        epochs: dict[int, int],
        done: Callable[[RecountResult], None],
        is_over: Callable[[], bool],
    ):
        self.counter, self.recounter, self.epochs = counter, recounter, epochs
        self.done, self.is_over = done, is_over
        self.size = recount.PAGE
        self.begun: set[int] = set()
        self.finished: set[str] = set()

    def run(self) -> bool:
        """Recount slices, at least one, until ``is_over``. Returns whether there is more to do now; False also if
        others work on the last slices."""
        rows: dict[int, str] = {}
        while rows := rows or self._rows():
            text = next(iter(rows.values()))
            shards = [shard for shard in rows if rows[shard] == text]
            written, more = self._step(shards, text)
            if more and self.is_over():
                self._release()
                return True
            rows = dict.fromkeys(shards, written) if written and len(shards) == len(rows) else {}
        self._release()
        return False

    def _rows(self) -> dict[int, str]:
        """Return what the rows say, by shard. Leave out shards that somebody else has completed, or in which another
        epoch has begun."""
        found = {shard: about for shard, *about in self._stored(self.epochs).values_list("shard", "epoch", "audited")}
        for shard, epoch in list(self.epochs.items()):
            now, text = found.get(shard, (0, ""))
            if now != epoch or (shard in self.begun and not text):
                del self.epochs[shard]
            elif text:
                self.begun.add(shard)
        return {shard: found[shard][1] for shard in sorted(self.epochs)}

    def _stored(self, shards: Iterable[int]) -> QuerySet:
        return shard_rows(self.counter).filter(shards=options.SHARDS, shard__in=list(shards))

    def _now(self) -> int:
        return self.counter.buffers[0].status().now

    def _step(self, shards: list[int], text: str) -> tuple[str, bool]:
        """Recount the next slice of these shards, whose rows say the same, or complete them. Returns what the rows say
        then, if that is known, and whether a slice was recounted after which there are more."""
        progress, now, token = self._without_finished(text), self._now(), uuid4().hex
        everyone, fresh = self.recounter.everyone, None
        if not progress.all:
            fresh = everyone.page(everyone.start(progress.end), self.size)
            if fresh:
                progress.claimed[token] = progress.end, fresh.end, now
                progress.end = fresh.end
            progress.all = fresh is None or fresh.is_last
            before, last = (progress.claimed[token][:2]) if fresh else ("", "")
        elif progress.claimed:
            slow = min(SLOW, options.HEAL_AFTER)
            late = [name for name, (*_, at) in progress.claimed.items() if now - at >= slow]
            if not late:
                for shard in shards:  # others are at work
                    self.epochs.pop(shard)
                return "", False
            before, last, _ = progress.claimed.pop(late[0])
            progress.claimed[token] = before, last, now
        else:
            self._complete(shards)
            return "", False
        progress.at = now
        written = str(progress)
        claimed = self._stored(shards).filter(audited=text).update(audited=written)
        if not claimed or not last:
            return "", False
        self.begun.update(shards)
        started = time.monotonic()
        buffers = [self.counter.buffers[shard] for shard in shards]
        pages: Iterable[Page] = [fresh] if fresh else self.recounter.pages(before, last)
        for page in pages:
            self.done(self.recounter.recount_page(page, buffers))
        quick = time.monotonic() - started < recount.TARGET_SECONDS
        self.size = min(2 * self.size, recount.LARGE_PAGE) if quick else max(self.size // 2, 1)
        self.finished.add(token)
        return written if claimed == len(shards) else "", not progress.all

    def _without_finished(self, text: str) -> Progress:
        progress = Progress.of(text)
        for token in self.finished & progress.claimed.keys():
            del progress.claimed[token]
        return progress

    def _release(self) -> None:
        """Note which slices are done, wherever they are still claimed: in another epoch, nowhere."""
        rows = self._stored(range(options.SHARDS))
        texts = rows.values_list("audited", flat=True)
        while found := [t for t in texts.all() if self.finished & Progress.of(t).claimed.keys()]:
            progress = self._without_finished(found[0])
            progress.at = max(progress.at, self._now())
            rows.filter(audited=found[0]).update(audited=str(progress))

    def _complete(self, shards: list[int]) -> None:
        for shard in shards:
            buffer, epoch = self.counter.buffers[shard], self.epochs.pop(shard)
            if buffer.complete(epoch, buffer.server()):
                self._stored([shard]).filter(epoch=epoch).update(audited="")
                record_event("recovered", self.counter, shard=shard, epoch=epoch)
