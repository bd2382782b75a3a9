"""The app's own bookkeeping in the database."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from .fields import ExactCharField


class DatabaseId(models.Model):
    """The id of this database, in a single row. A database that was emptied or replaced has another one."""

    uid = models.CharField(_("id"), max_length=32)

    class Meta:
        verbose_name = _("id of the database")
        verbose_name_plural = _("id of the database")

    def __str__(self) -> str:
        return self.uid


class CounterShard(models.Model):
    """One shard of a counter: its epoch; the last finished batch with its random id, and how many owners of the next
    one are written; the batch up to which batches are rejected; how far the audit has come; for the first shard, how
    far the comparison of everyone has come; and the fingerprint of the declaration in force, and since when."""

    counter = ExactCharField(_("counter"), max_length=100)
    shard = models.PositiveIntegerField(_("shard"))
    shards = models.PositiveIntegerField(_("number of shards"))
    epoch = models.BigIntegerField(_("epoch"), default=0)
    finished = models.BigIntegerField(_("last finished batch"), default=0)
    batch_id = models.CharField(_("id of that batch"), max_length=32, blank=True)
    progress = models.PositiveIntegerField(_("owners written of the next batch"), default=0)
    closed = models.BigIntegerField(_("closed up to batch"), default=0)
    audited = models.TextField(_("audited up to"), blank=True)
    verified = models.TextField(_("verified"), blank=True)
    declared = models.CharField(_("declaration"), max_length=16, blank=True)
    declared_at = models.DateTimeField(_("in force since"), default=timezone.now)

    class Meta:
        verbose_name = _("shard")
        verbose_name_plural = _("shards")
        constraints = [models.UniqueConstraint(fields=["counter", "shard", "shards"], name="nc_one_row_a_shard")]

    def __str__(self) -> str:
        return f"{self.counter} {self.shard}/{self.shards}"


class Dashboard(CounterShard):
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


class RecountRequest(models.Model):
    """Asks for a recount: of an owner, written while Redis was unreachable; or of everyone, if a statement does not
    say whose counts it changed. Requests are written and deleted, never changed."""

    counter = ExactCharField(_("counter"), max_length=100)
    owner = models.TextField(_("owner"), blank=True)
    everyone = models.BooleanField(_("everyone"), default=False)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    class Meta:
        verbose_name = _("recount request")
        verbose_name_plural = _("recount requests")

    def __str__(self) -> str:
        return f"{self.counter} {'*' if self.everyone else self.owner}"
