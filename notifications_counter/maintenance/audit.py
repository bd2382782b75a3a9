"""An audit: flushers share the work of recounting everyone, in pages, in the order of primary keys.

The shard's row says how far pages have been claimed, and which of them are not done. A flusher claims a page, and notes
that its last one is done, by an UPDATE that succeeds only if the row still says what the flusher has read or written.
If a flusher is killed, another one takes over its page. If it was only slow, that costs work, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

from django.db.models import QuerySet

from ..conf import options
from ..declaration import Declaration
from ..sql.everyone import Page
from . import recount
from .history import record
from .recount import Recounter
from .shard_rows import Note, shard_rows

TAKE_OVER_SECONDS = 10
"""Seconds until another flusher takes over a claimed page, or HEAL_AFTER if that is less. Safety does not depend on
it."""


class Claim(NamedTuple):
    """A claim on the owners ``after`` a position, up to the ``last`` one, made ``at`` this time."""

    after: str
    last: str
    at: int


@dataclass
class AuditProgress(Note):
    """How far the audit of a shard has come: the ``end`` of the claimed pages, whether these are ``all``, the claims
    that are not done, by token, and when the last step was taken (``at``). Times are seconds of the Redis clock."""

    end: str = ""
    all: bool = False
    claimed: dict[str, Claim] = field(default_factory=dict)
    at: int = 0

    def __post_init__(self) -> None:
        self.claimed = {token: Claim(*about) for token, about in self.claimed.items()}

    def claim(self, claim: Claim) -> str:
        """Add a claim. Returns its token."""
        token = uuid4().hex
        self.claimed[token] = claim
        return token


class Audit:
    """An audit of some shards, each in the epoch that Redis is in."""

    def __init__(
        self,
        counter: Declaration,
        recounter: Recounter,
        epochs: dict[int, int],
        progress: Callable[[int], None],
        is_over: Callable[[], bool],
    ):
        self.counter, self.recounter, self.epochs = counter, recounter, epochs
        self.progress, self.is_over = progress, is_over
        self.size = recount.PAGE
        self.begun: set[int] = set()
        self.finished: set[str] = set()

    def run(self) -> bool:
        """Recount pages, at least one, until ``is_over``. Returns whether there is more to do now; False also if
        others work on the last pages."""
        texts: dict[int, str] = {}
        while texts := texts or self._texts():
            text = next(iter(texts.values()))
            shards = [shard for shard in texts if texts[shard] == text]
            written, more = self._step(shards, text)
            if more and self.is_over():
                self._release()
                return True
            texts = dict.fromkeys(shards, written) if written and len(shards) == len(texts) else {}
        self._release()
        return False

    def _texts(self) -> dict[int, str]:
        """Return the text in the row of each shard, without shards that another flusher has completed, or in which
        another epoch has begun."""
        found = {row.shard: row for row in self._rows(self.epochs)}
        for shard, epoch in list(self.epochs.items()):
            row = found.get(shard)
            if row is None or row.epoch != epoch or (shard in self.begun and not row.audited):
                del self.epochs[shard]
            elif row.audited:
                self.begun.add(shard)
        return {shard: found[shard].audited for shard in sorted(self.epochs)}

    def _rows(self, shards: Iterable[int]) -> QuerySet:
        return shard_rows(self.counter).filter(shards=options.SHARDS, shard__in=list(shards))

    def _now(self) -> int:
        return self.counter.buffers[0].upkeep.status().now

    def _step(self, shards: list[int], text: str) -> tuple[str, bool]:
        """Recount the next page of these shards, whose rows have the same text, or complete them. Returns the text that
        they have then, if it is known, and whether a page was recounted and more follow."""
        progress, now = self._without_finished(text), self._now()
        token, page = "", None
        if not progress.all:
            page = self.recounter.everyone.page(self.recounter.everyone.start(progress.end), self.size)
            progress.all = page is None or page.is_last
            if page:
                token = progress.claim(Claim(progress.end, page.end, now))
                progress.end = page.end
        elif progress.claimed:
            slow = min(TAKE_OVER_SECONDS, options.HEAL_AFTER)
            late = [name for name, claim in progress.claimed.items() if now - claim.at >= slow]
            if not late:
                for shard in shards:  # others are at work
                    self.epochs.pop(shard)
                return "", False
            token = progress.claim(progress.claimed.pop(late[0])._replace(at=now))
        else:
            self._complete(shards)  # rule: claims
            return "", False
        progress.at = now
        written = str(progress)
        claimed = self._rows(shards).filter(audited=text).update(audited=written)
        if not claimed or not token:
            return "", False
        self.begun.update(shards)
        claim = progress.claimed[token]
        self._recount(shards, [page] if page else self.recounter.pages(claim.after, claim.last))
        self.finished.add(token)
        return written if claimed == len(shards) else "", not progress.all

    def _recount(self, shards: list[int], pages: Iterable[Page]) -> None:
        started = time.monotonic()
        buffers = [self.counter.buffers[shard] for shard in shards]
        for page in pages:
            self.recounter.recount_page(page, buffers)
            self.progress(self.recounter.result.checked)
        self.size = recount.next_size(self.size, started, recount.LARGE_PAGE)

    def _without_finished(self, text: str) -> AuditProgress:
        progress = AuditProgress.of(text)
        for token in self.finished & progress.claimed.keys():
            del progress.claimed[token]
        return progress

    def _release(self) -> None:
        """Note which pages are done, in each row that still claims them. In another epoch, no row does."""
        rows = self._rows(range(options.SHARDS))
        texts = rows.values_list("audited", flat=True)
        while found := [t for t in texts.all() if self.finished & AuditProgress.of(t).claimed.keys()]:
            progress = self._without_finished(found[0])
            progress.at = max(progress.at, self._now())
            rows.filter(audited=found[0]).update(audited=str(progress))

    def _complete(self, shards: list[int]) -> None:
        for shard in shards:
            buffer, epoch = self.counter.buffers[shard], self.epochs.pop(shard)
            if buffer.upkeep.complete(epoch, buffer.upkeep.server()):
                self._rows([shard]).filter(epoch=epoch).update(audited="")
                record("recovered", self.counter, shard=shard, epoch=epoch)
