"""Sites that count for several columns, such as PostHog's organizations and Open edX's apps."""

import uuid

from django.conf import settings
from django.db import models

from notifications_counter.models import BaseCount

# The defaults take "a" and "A" for the same; that of MariaDB "a ", too.
EXACT = {"mariadb": "utf8mb4_nopad_bin", "mysql": "utf8mb4_0900_bin"}.get(settings.DATABASE)


def reference(to=settings.AUTH_USER_MODEL, **options):
    """A foreign key. The users' table is made after these."""
    return models.ForeignKey(
        to, **{"on_delete": models.CASCADE, "related_name": "+", "db_constraint": False, **options}
    )


def key(to=settings.AUTH_USER_MODEL):
    """One of the columns of a total, which need no index but that of the primary key."""
    return reference(to, on_delete=models.DO_NOTHING, db_index=False)


# ---------------------------------------------------------- for each organization and user
class Organization(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


class Alert(models.Model):
    organization = reference(Organization, null=True)
    recipient = reference()
    read = models.BooleanField(default=False)


class AlertCount(BaseCount):
    pk = models.CompositePrimaryKey("organization", "recipient")
    organization = key(Organization)
    recipient = key()
    unread_count = models.IntegerField(db_default=0)


# ---------------------------------------------------------------------------- for each app
def app_name():
    return models.CharField(max_length=64, db_collation=EXACT)


class CourseNotification(models.Model):
    user = reference()
    app_name = app_name()
    last_seen = models.DateTimeField(null=True, blank=True)
    last_read = models.DateTimeField(null=True, blank=True)


class AppCount(BaseCount):
    """Both counts, with a number of its own as the primary key."""

    user = key()
    app_name = app_name()
    unseen_count = models.IntegerField(db_default=0)
    unread_count = models.IntegerField(db_default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "app_name"], name="one_count_an_app")]


# ---------------------------------------------------------------------------- three columns
class Vote(models.Model):
    """Integers alone, and columns that refer to nothing."""

    shop = models.IntegerField(null=True)
    item = models.BigIntegerField()
    stars = models.SmallIntegerField()
    hidden = models.BooleanField(default=False)
    points = models.IntegerField(null=True)
    weighted = models.GeneratedField(
        expression=models.F("points") * models.F("stars"), output_field=models.BigIntegerField(), db_persist=True
    )


class VoteCount(BaseCount):
    pk = models.CompositePrimaryKey("shop", "item", "stars")
    shop = models.IntegerField()
    item = models.BigIntegerField()
    stars = models.SmallIntegerField()
    vote_count = models.IntegerField(db_default=0)
    points = models.BigIntegerField(db_default=0)
