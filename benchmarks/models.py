"""The tables of the rivals, each with the indexes that suit it best."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from notifications_counter.models import BaseCount


class Columns(models.Model):
    """The columns of Notification."""

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

    def __str__(self) -> str:
        return self.title


class PlainNotification(Columns):
    """The indexes of Notification, without a counter."""

    class Meta:
        indexes = [
            models.Index(fields=["user", "read_at"], name="plain_user_read"),
            models.Index(fields=["user", "-created_at", "-id"], name="plain_user_created"),
        ]


class PartialNotification(Columns):
    """For COUNT(*), with a partial index on the unread rows. MariaDB has no partial indexes; see rivals.CountStar."""

    class Meta:
        indexes = [
            models.Index(fields=["user"], name="partial_unread", condition=Q(read_at__isnull=True)),
            models.Index(fields=["user", "-created_at", "-id"], name="partial_user_created"),
        ]


class RowNotification(Columns):
    """Counted by a row that the application updates."""

    class Meta:
        indexes = [
            models.Index(fields=["user", "read_at"], name="row_user_read"),
            models.Index(fields=["user", "-created_at", "-id"], name="row_user_created"),
        ]


class TriggerNotification(Columns):
    """Counted by a row that a trigger updates."""

    class Meta:
        indexes = [
            models.Index(fields=["user", "read_at"], name="trigger_user_read"),
            models.Index(fields=["user", "-created_at", "-id"], name="trigger_user_created"),
        ]


class DeltaNotification(Columns):
    """Counted by deltas that a trigger appends."""

    class Meta:
        indexes = [
            models.Index(fields=["user", "read_at"], name="delta_user_read"),
            models.Index(fields=["user", "-created_at", "-id"], name="delta_user_created"),
        ]


class RecipeNotification(Columns):
    """Counted by the plain recipe in Redis."""

    class Meta:
        indexes = [
            models.Index(fields=["user", "read_at"], name="recipe_user_read"),
            models.Index(fields=["user", "-created_at", "-id"], name="recipe_user_created"),
        ]


class OneCounter(Columns):
    """Counted by 1 counter."""

    class Meta:
        indexes = [
            models.Index(fields=["user", "read_at"], name="one_user_read"),
            models.Index(fields=["user", "-created_at", "-id"], name="one_user_created"),
        ]


class TwoCounters(Columns):
    """Counted by 2 counters."""

    class Meta:
        indexes = [
            models.Index(fields=["user", "read_at"], name="two_user_read"),
            models.Index(fields=["user", "-created_at", "-id"], name="two_user_created"),
        ]


class FourCounters(Columns):
    """Counted by 4 counters."""

    class Meta:
        indexes = [
            models.Index(fields=["user", "read_at"], name="four_user_read"),
            models.Index(fields=["user", "-created_at", "-id"], name="four_user_created"),
        ]


class HqNotification(models.Model):
    """The columns and indexes of django-notifications-hq 1.8.3, which Django 5.1 and later refuses to load, because its
    model has ``index_together``. Here that is an index."""

    level = models.CharField(max_length=20, default="info")
    recipient = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    unread = models.BooleanField(default=True, db_index=True)
    actor_content_type = models.ForeignKey("contenttypes.ContentType", models.CASCADE, related_name="+")
    actor_object_id = models.CharField(max_length=255)
    verb = models.CharField(max_length=255)
    description = models.TextField(blank=True, null=True)  # noqa: DJ001
    target_content_type = models.ForeignKey("contenttypes.ContentType", models.CASCADE, related_name="+", null=True)
    target_object_id = models.CharField(max_length=255, blank=True, null=True)  # noqa: DJ001
    action_object_content_type = models.ForeignKey(
        "contenttypes.ContentType", models.CASCADE, related_name="+", null=True
    )
    action_object_object_id = models.CharField(max_length=255, blank=True, null=True)  # noqa: DJ001
    timestamp = models.DateTimeField(auto_now_add=True, db_index=True)
    public = models.BooleanField(default=True, db_index=True)
    deleted = models.BooleanField(default=False, db_index=True)
    emailed = models.BooleanField(default=False, db_index=True)
    data = models.TextField(blank=True, null=True)  # noqa: DJ001

    class Meta:
        indexes = [models.Index(fields=["recipient", "unread"], name="hq_recipient_unread")]

    def __str__(self) -> str:
        return self.verb


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


class Delta(models.Model):
    """The change of a count by a statement, until the job adds it to the total."""

    user_id = models.BigIntegerField()
    delta = models.IntegerField()

    class Meta:
        indexes = [models.Index(fields=["user_id", "delta"], name="delta_of_user")]

    def __str__(self) -> str:
        return f"{self.user_id}: {self.delta:+}"


class RecipeCount(Count):
    """Updated by the recipe's flusher."""


class Totals(BaseCount):
    """A count and a batch for each of several counters."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.DO_NOTHING, primary_key=True, db_constraint=False, related_name="+"
    )
    count0 = models.IntegerField(default=0)
    batch0 = models.BigIntegerField(default=0)
    count1 = models.IntegerField(default=0)
    batch1 = models.BigIntegerField(default=0)
    count2 = models.IntegerField(default=0)
    batch2 = models.BigIntegerField(default=0)
    count3 = models.IntegerField(default=0)
    batch3 = models.BigIntegerField(default=0)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return str(self.pk)


class OneCounterTotals(Totals):
    pass


class TwoCountersTotals(Totals):
    pass


class FourCountersTotals(Totals):
    pass


class Delivery(models.Model):
    """A message to a user, in a conversation, on a device."""

    user = models.BigIntegerField()
    conversation = models.BigIntegerField()
    device = models.BigIntegerField()
    read = models.BooleanField(default=False)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return str(self.pk)


class OneColumn(Delivery):
    """Counted by user."""

    class Meta:
        indexes = [models.Index(fields=["user", "read"], name="one_column")]


class TwoColumns(Delivery):
    """Counted by user and conversation."""

    class Meta:
        indexes = [models.Index(fields=["user", "conversation", "read"], name="two_columns")]


class ThreeColumns(Delivery):
    """Counted by user, conversation and device."""

    class Meta:
        indexes = [models.Index(fields=["user", "conversation", "device", "read"], name="three_columns")]


class ColumnsTotals(BaseCount):
    unread_count = models.IntegerField(default=0)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return str(self.pk)


class OneColumnTotals(ColumnsTotals):
    user = models.BigIntegerField(primary_key=True)


class TwoColumnsTotals(ColumnsTotals):
    pk = models.CompositePrimaryKey("user", "conversation")
    user = models.BigIntegerField()
    conversation = models.BigIntegerField()


class ThreeColumnsTotals(ColumnsTotals):
    pk = models.CompositePrimaryKey("user", "conversation", "device")
    user = models.BigIntegerField()
    conversation = models.BigIntegerField()
    device = models.BigIntegerField()
