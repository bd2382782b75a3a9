from django.conf import settings
from django.db import models

from notifications_counter.models import BaseCount


class Notification(models.Model):
    """It has the name and the way back of ours."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notifications")
    seen = models.BooleanField(default=False)


class Reply(models.Model):
    notification = models.ForeignKey(Notification, on_delete=models.CASCADE)


class UnseenCount(BaseCount):
    user = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        primary_key=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="notifications_count",
    )
    unseen_count = models.IntegerField(default=0)
