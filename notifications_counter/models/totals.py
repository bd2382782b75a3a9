"""Stored totals, to which counters flush."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import ExactCharField


class BaseCount(models.Model):
    """Stored totals of a counter. A subclass adds the owner, as a one-to-one primary key or several columns, without a
    database constraint and without a cascade, and a signed integer for the count."""

    updated_at = models.DateTimeField(_("updated at"), auto_now=True)

    class Meta:
        abstract = True


class UserNotificationsCount(BaseCount):
    """The stored numbers of a user's unread and unseen notifications. As of the last flush."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        primary_key=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="+",
        verbose_name=_("user"),
    )
    unread_count = models.IntegerField(_("unread count"), db_default=0)
    unseen_count = models.IntegerField(_("unseen count"), db_default=0)

    class Meta:
        verbose_name = _("unread count")
        verbose_name_plural = _("unread counts")

    def __str__(self) -> str:
        return f"{getattr(self, 'shown_user', self.pk)}: {self.unread_count}"  # the admin's list has read the users


class UserKindNotificationsCount(BaseCount):
    """The stored number of unread notifications of a user and a kind. Empty unless `unread_by_kind` is in use."""

    pk = models.CompositePrimaryKey("user", "kind")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="+",
        verbose_name=_("user"),
    )
    kind = ExactCharField(_("kind"), max_length=64, blank=True)
    unread_count = models.IntegerField(_("unread count"), db_default=0)

    class Meta:
        verbose_name = _("unread count of a kind")
        verbose_name_plural = _("unread counts by kind")

    def __str__(self) -> str:
        return f"{self.user_id}, {self.kind}: {self.unread_count}"
