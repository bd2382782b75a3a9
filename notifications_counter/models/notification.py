"""Notifications, and their querysets."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urljoin, urlsplit

from django.conf import settings
from django.db import models, router
from django.db.models import QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..internals import url_has_allowed_host_and_scheme
from .fields import ExactCharField


class NotificationQuerySet(QuerySet):
    """Notifications."""

    def unread(self) -> NotificationQuerySet:
        """Return the unread notifications."""
        return self.filter(read_at__isnull=True)

    def read(self) -> NotificationQuerySet:
        """Return the notifications that have been read."""
        return self.filter(read_at__isnull=False)

    def unseen(self) -> NotificationQuerySet:
        """Return the notifications that have been neither seen nor read."""
        return self.filter(seen_at__isnull=True, read_at__isnull=True)

    def for_user(self, user: object) -> NotificationQuerySet:
        """Return the notifications of a user, given as an instance or a primary key."""
        return self.filter(user=user)

    def mark_as_seen(self) -> int:
        """Mark the unseen ones as seen. Returns how many really changed."""
        return self.unseen().update(seen_at=timezone.now())

    mark_as_seen.alters_data = True  # type: ignore[attr-defined]

    def mark_as_read(self, now: datetime | None = None) -> int:
        """Mark the unread ones as read, and so as seen, at this time. Returns how many really changed."""
        now = now or timezone.now()
        return self.unread().update(seen_at=Coalesce("seen_at", now), read_at=now)

    mark_as_read.alters_data = True  # type: ignore[attr-defined]

    def mark_as_unread(self) -> int:
        """Mark the read ones as unread; they stay seen. Returns how many really changed."""
        # MariaDB and MySQL set columns one after the other, so read_at comes last.
        return self.read().update(seen_at=Coalesce("seen_at", "read_at"), read_at=None)

    mark_as_unread.alters_data = True  # type: ignore[attr-defined]


def safe_link(url: str) -> str:
    """Return a URL if a page may show it: a path on this site, or a complete http or https URL. Else return an empty
    text, as for ``javascript:``, or ``//example.com``, which only looks like a path."""
    url = url.strip()
    slashed = url.replace("\\", "/")
    try:
        host = urlsplit(url).netloc if url.lower().startswith(("http://", "https://")) else None
        resolved = urljoin("/", slashed)
    except ValueError:
        return ""
    # Browsers drop tabs and line breaks before they look for the scheme and the host.
    hidden = "//" in (slashed[:2], resolved[:2])  # also without a host, and as in /.//host: Django lets both pass
    return url if url.isprintable() and not hidden and url_has_allowed_host_and_scheme(url, host) else ""


class Notification(models.Model):
    """A message to a user. It is unread as long as ``read_at`` is empty, and unseen as long as it is unread and
    ``seen_at`` is empty."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="+",
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
        """``url`` if a page may show it as a link, else empty: see `safe_link`."""
        return safe_link(self.url)

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
