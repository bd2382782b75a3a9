from django.conf import settings
from django.db import connection, models

from notifications_counter.models import BaseCount


class Job(models.Model):
    worker = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="jobs")
    number = models.IntegerField(unique=True)
    done = models.BooleanField(default=False)


def total() -> models.OneToOneField:
    return models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.DO_NOTHING, primary_key=True, db_constraint=False, related_name="+"
    )


class JobCount(BaseCount):
    worker = total()
    open_count = models.IntegerField(default=0)


class InboxCount(BaseCount):
    recipient = total()
    inbox_count = models.IntegerField(default=0)


if connection.vendor == "postgresql":
    from psqlextra.models import PostgresModel

    class Item(PostgresModel):
        keeper = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="items")
        number = models.IntegerField(unique=True)
        sold = models.BooleanField(default=False)

    class ItemCount(BaseCount):
        keeper = total()
        free_count = models.IntegerField(default=0)
