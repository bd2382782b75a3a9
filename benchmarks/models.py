"""The tables of the rivals, each with the indexes that suit it best."""

from django.conf import settings
from django.db import models
from django.db.models import Q


class Columns(models.Model):
    """The columns and indexes of the app's Notification, without a counter."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    kind = models.CharField(max_length=64, blank=True)
    title = models.CharField(max_length=255)
    body = models.TextField(blank=True)
    url = models.CharField(max_length=2000, blank=True)
    data = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True
        indexes = [
            models.Index(fields=["user", "read_at"], name="%(class)s_read"),
            models.Index(fields=["user", "-created_at", "-id"], name="%(class)s_created"),
        ]

    def __str__(self) -> str:
        return self.title


class PlainNotification(Columns):
    pass


class RowNotification(Columns):
    """Counted by a row that the application updates."""


class TriggerNotification(Columns):
    """Counted by a row that a trigger updates."""


class DeltaNotification(Columns):
    """Counted by deltas that a trigger appends."""


class RecipeNotification(Columns):
    """Counted by the plain recipe in Redis."""


class PartialNotification(Columns):
    """For COUNT(*), with a partial index on the unread rows. MariaDB has no partial indexes; see rivals.CountStar."""

    class Meta:
        indexes = [
            models.Index(fields=["user"], name="partial_unread", condition=Q(read_at__isnull=True)),
            models.Index(fields=["user", "-created_at", "-id"], name="partial_user_created"),
        ]


class Count(models.Model):
    user_id = models.BigIntegerField(primary_key=True)
    unread_count = models.IntegerField(default=0)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.pk}: {self.unread_count}"


class RowCount(Count):
    """Updated by ``F()``."""


class TriggerCount(Count):
    """Updated by a trigger."""


class DeltaCount(Count):
    """Updated by a job that squashes deltas."""


class RecipeCount(Count):
    """Updated by the recipe's flusher."""


class Delta(models.Model):
    """The change of a count by a statement, until the job adds it to the total."""

    user_id = models.BigIntegerField()
    delta = models.IntegerField()

    class Meta:
        indexes = [models.Index(fields=["user_id", "delta"], name="delta_of_user")]

    def __str__(self) -> str:
        return f"{self.user_id}: {self.delta:+}"


class Keys(models.Model):
    """Rows of owners of one column or two. A key is unique, as is that of a tenant and one of its users."""

    read_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True
        indexes = [models.Index(fields=["tenant", "user", "read_at"]), models.Index(fields=["user", "read_at"])]

    def __str__(self) -> str:
        return f"{self.pk}"


class IntegerKeys(Keys):
    tenant, user = models.BigIntegerField(), models.BigIntegerField()


class UuidKeys(Keys):
    tenant, user = models.UUIDField(), models.UUIDField()


class TextKeys(Keys):
    tenant, user = models.CharField(max_length=32), models.CharField(max_length=32)
