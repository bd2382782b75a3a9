"""What counting is compared with: the same table, counted by nobody."""

from django.conf import settings
from django.db import models


class PlainNotification(models.Model):
    """The columns and indexes of Notification."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    kind = models.CharField(max_length=64, blank=True)
    title = models.CharField(max_length=255)
    body = models.TextField(blank=True)
    url = models.CharField(max_length=2000, blank=True)
    data = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["user", "read_at"], name="plain_user_read"),
            models.Index(fields=["user", "-created_at"], name="plain_user_created"),
        ]

    def __str__(self) -> str:
        return self.title
