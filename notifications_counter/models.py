"""Notifications, their stored totals, and what the counters themselves remember."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

from django.db import models, router
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from .conf import swappable, user_model
from .fields import ExactCharField
from .internals import url_has_allowed_host_and_scheme
from .querysets import NotificationQuerySet


class BaseCount(models.Model):
    """Stored totals of a counter. A subclass adds the owner, as a one-to-one primary key without a database constraint
    and without a cascade, and a signed integer for the count."""

    flushed_batch = models.BigIntegerField(_("flushed batch"), default=0, editable=False)
    updated_at = models.DateTimeField(_("updated at"), auto_now=True)

    class Meta:
        abstract = True


class Notification(models.Model):
    """A message to a user. It is unread as long as ``read_at`` is empty, and unseen as long as it is unread and
    ``seen_at`` is empty."""

    user = models.ForeignKey(
        user_model(),
        on_delete=models.CASCADE,
        related_name="notifications",
        verbose_name=_("user"),
        db_index=False,
    )
    kind = ExactCharField(_("kind"), max_length=64, blank=True)
    title = models.CharField(_("title"), max_length=255)
    body = models.TextField(_("body"), blank=True)
    url = models.CharField(_("URL"), max_length=2000, blank=True)
    data = models.JSONField(_("data"), default=dict, blank=True)
    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)
    seen_at = models.DateTimeField(_("seen at"), null=True, blank=True)
    read_at = models.DateTimeField(_("read at"), null=True, blank=True)

    objects = NotificationQuerySet.as_manager()

    class Meta:
        swappable = swappable()
        verbose_name = _("notification")
        verbose_name_plural = _("notifications")
        ordering = ["-created_at", "-pk"]
        indexes = [
            models.Index(fields=["user", "read_at", "seen_at"], name="nc_user_read"),
            models.Index(fields=["user", "-created_at", "-id"], name="nc_user_created"),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def is_read(self) -> bool:
        """Whether it is read, according to this instance."""
        return self.read_at is not None

    @property
    def safe_url(self) -> str:
        """``url`` if a page may show it as a link: a path on this site, or a complete http or https URL. Empty for
        others, such as ``javascript:``, or ``//example.com``, which only looks like a path."""
        url = self.url.strip()
        slashed = url.replace("\\", "/")
        try:
            host = urlsplit(url).netloc if url.lower().startswith(("http://", "https://")) else None
            resolved = urljoin("/", slashed)
        except ValueError:
            return ""
        # Browsers drop tabs and line breaks before they look for the scheme and the host.
        hidden = "//" in (slashed[:2], resolved[:2])  # also without a host, and as in /.//host: Django lets both pass
        return url if url.isprintable() and not hidden and url_has_allowed_host_and_scheme(url, host) else ""

    def mark_as_seen(self) -> bool:
        """Mark it as seen, if it is neither seen nor read. Returns whether this call changed it."""
        return self._mark("mark_as_seen")

    def mark_as_read(self) -> bool:
        """Mark it as read, and so as seen. Returns whether this call changed it."""
        return self._mark("mark_as_read")

    def mark_as_unread(self) -> bool:
        """Mark it as unread. Returns whether this call changed it."""
        return self._mark("mark_as_unread")

    mark_as_seen.alters_data = True  # type: ignore[attr-defined]
    mark_as_read.alters_data = mark_as_unread.alters_data = True  # type: ignore[attr-defined]

    def _mark(self, how: str) -> bool:
        using = router.db_for_write(type(self), instance=self)
        mine = Notification.objects.using(using).filter(pk=self.pk)
        # If the filter names the owner, this is one statement. The row may have another owner by now.
        changed = bool(getattr(mine.filter(user=self.user_id), how)() or getattr(mine, how)())
        self.seen_at, self.read_at = mine.values_list("seen_at", "read_at").first() or (None, None)
        return changed


class UserNotificationsCount(BaseCount):
    """The stored numbers of a user's unread and unseen notifications. What waits in Redis is not included."""

    user = models.OneToOneField(
        user_model(),
        primary_key=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="notifications_count",
        verbose_name=_("user"),
    )
    unread_count = models.IntegerField(_("unread count"), default=0)
    # With database defaults, a flush of the other count does not write these.
    unseen_count = models.IntegerField(_("unseen count"), default=0, db_default=0)
    unseen_batch = models.BigIntegerField(
        _("flushed batch of the unseen count"), default=0, db_default=0, editable=False
    )

    class Meta:
        swappable = swappable()
        verbose_name = _("unread count")
        verbose_name_plural = _("unread counts")

    def __str__(self) -> str:
        return f"{self.pk}: {self.unread_count}"


class UserKindNotificationsCount(BaseCount):
    """The stored number of unread notifications of a user and a kind. Empty unless `unread_by_kind` is switched on."""

    pk = models.CompositePrimaryKey("user", "kind")
    user = models.ForeignKey(
        user_model(),
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="+",
        verbose_name=_("user"),
    )
    kind = ExactCharField(_("kind"), max_length=64, blank=True)
    unread_count = models.IntegerField(_("unread count"), default=0)

    class Meta:
        swappable = swappable()
        verbose_name = _("unread count of a kind")
        verbose_name_plural = _("unread counts by kind")

    def __str__(self) -> str:
        return f"{self.user_id}, {self.kind}: {self.unread_count}"


class DatabaseId(models.Model):
    """The id of this database, in a single row. A database that was emptied or replaced has another one."""

    uid = models.CharField(_("id"), max_length=32)

    class Meta:
        verbose_name = _("id of the database")
        verbose_name_plural = _("id of the database")

    def __str__(self) -> str:
        return self.uid


class CounterShard(models.Model):
    """One shard of a counter: its epoch; the last finished batch with its random mark, and how many users of the next
    one are written; the batch up to which batches are rejected; how far the audit has come; and the fingerprint of the
    declaration in force, and since when."""

    counter = ExactCharField(_("counter"), max_length=100)
    shard = models.PositiveIntegerField(_("shard"))
    shards = models.PositiveIntegerField(_("number of shards"))
    epoch = models.BigIntegerField(_("epoch"), default=0)
    finished = models.BigIntegerField(_("last finished batch"), default=0)
    mark = models.CharField(_("mark of that batch"), max_length=32, blank=True)
    progress = models.PositiveIntegerField(_("users written of the next batch"), default=0)
    closed = models.BigIntegerField(_("closed up to batch"), default=0)
    audited = models.TextField(_("audited up to"), blank=True)
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


class ImportProgress(models.Model):
    """How far an import of notifications from another app's table has come: the primary key of the last row, and those
    below it that were missing, because their transactions may not have been committed yet."""

    table = models.CharField(_("table"), max_length=255, primary_key=True)
    position = models.BigIntegerField(_("position"), default=0)
    missing = models.JSONField(_("missing"), default=list)

    class Meta:
        swappable = swappable()
        verbose_name = _("import")
        verbose_name_plural = _("imports")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.table}: {self.position}"
