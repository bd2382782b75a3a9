"""The app's own bookkeeping in the database."""

from __future__ import annotations

from uuid import uuid4

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..buffer.types import EVERYONE
from ..internals import Uncached
from .fields import ExactCharField


class DatabaseId(models.Model):
    """The id of this database, in a single row. A database that was emptied or replaced has another one."""

    uid = models.CharField(_("id"), max_length=32)

    objects = Uncached.as_manager()

    class Meta:
        verbose_name = _("id of the database")
        verbose_name_plural = _("id of the database")

    def __str__(self) -> str:
        return self.uid


class Mark(str):
    """What the database has of the last batch: a generation, or how many owners of a batch are stored. It ends with a
    random text, so none is written twice (rule: mark). A generation is short, because it is in each total's key."""

    @classmethod
    def of_generation(cls) -> Mark:
        return cls(uuid4().hex[:8])

    @classmethod
    def of_chunk(cls, batch: str, stored: int) -> Mark:
        return cls(f"{batch}:{stored}:{uuid4().hex[:12]}")

    @property
    def batch(self) -> str:
        """The batch; empty if no chunk has been stored in this generation."""
        return self.partition(":")[0] if ":" in self else ""

    def stored(self, batch: str) -> int:
        """Return how many owners of a batch are stored."""
        return int(self.split(":")[1]) if self.batch == batch else 0


class CounterState(models.Model):
    """What the database remembers of a counter.

    ``mark``             of the last chunk that a flush has written, at first the generation that has begun, and empty
                         before
    ``walk_token``       a random text, which changes with each page of a walk
    ``walk_speed``       of the walk that is under way; empty if none is
    ``walk_began_at``    when the last walk began
    ``walked_to``        the last owner of its pages that are done, NULL before the first
    ``walk_resumes_at``  when its next page is due
    ``wrong``            how many wrong counts were found, the last one at ``wrong_at``, NULL if everyone
                         has been recounted since, and was right
    ``skipped``          how often rows could not be counted, or a count not stored, the last time at ``skipped_at``
    ``fingerprint``      of the declaration in force since ``declared_at``, which is NULL if `migrate` has made the
                         table, and no flusher has served the counter yet
    ``replaced``         the fingerprints that were in force before
    ``healed_at``        when a flusher last healed by that declaration, up to a third of DEPLOY_SECONDS too early
    ``off_since``        when counting was switched off, NULL if it is on
    """

    FULL_SPEED, GENTLE = "full speed", "gentle"

    counter = ExactCharField(_("counter"), max_length=100, primary_key=True)
    mark = models.CharField(_("mark"), max_length=100, blank=True)
    walk_token = models.CharField(_("token of the walk"), max_length=32, blank=True)
    walk_speed = models.CharField(_("speed"), max_length=10, blank=True)
    walked_to = models.TextField(_("walked to"), null=True)  # noqa: DJ001 (an owner key may be empty)
    walk_began_at = models.DateTimeField(_("walk began at"), default=timezone.now)
    walk_resumes_at = models.DateTimeField(_("walk resumes at"), default=timezone.now)
    wrong = models.PositiveBigIntegerField(_("wrong counts"), default=0)
    wrong_at = models.DateTimeField(_("last wrong count at"), null=True)
    skipped = models.PositiveBigIntegerField(_("skipped counts"), default=0)
    skipped_at = models.DateTimeField(_("last skipped count at"), null=True)
    fingerprint = models.CharField(_("declaration"), max_length=32, blank=True)
    declared_at = models.DateTimeField(_("in force since"), null=True, default=timezone.now)
    replaced = models.TextField(_("replaced declarations"), blank=True)
    healed_at = models.DateTimeField(_("last heal at"), default=timezone.now)
    off_since = models.DateTimeField(_("off since"), null=True)

    objects = Uncached.as_manager()

    class Meta:
        verbose_name = _("state of a counter")
        verbose_name_plural = _("states of counters")

    def __str__(self) -> str:
        return self.counter


class Dashboard(CounterState):
    """Represents the dashboard in the admin: its entry in the menu, and the permissions to view and use it."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        permissions = [
            ("flush_unread_counts", "Can flush unread counts"),
            ("recount_unread_counts", "Can recount unread counts"),
        ]
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")


class DoubtRequest(models.Model):
    """Names an owner to doubt, because Redis could not be told; or everyone, if a statement does not say whose counts
    it changed. Requests are written and deleted, never changed."""

    counter = ExactCharField(_("counter"), max_length=100)
    owner_key = models.TextField(_("owner key"), blank=True)
    everyone = models.BooleanField(_("everyone"), default=False)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    objects = Uncached.as_manager()

    class Meta:
        verbose_name = _("doubt request")
        verbose_name_plural = _("doubt requests")

    def __str__(self) -> str:
        return f"{self.counter} {'*' if self.everyone else self.owner_key}"

    @property
    def named(self) -> str:
        """The owner key, or EVERYONE, which PostgreSQL cannot store."""
        return EVERYONE if self.everyone else self.owner_key
