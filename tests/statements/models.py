"""Models that know nothing of the app: no base class, no manager, no signal of ours."""

import uuid

from django.db import models

from notifications_counter.models import BaseCount
from tests.tasks.models import key


class Agent(models.Model):
    name = models.CharField(max_length=20)


class Queue(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


class BaseTicket(models.Model):
    agent = models.ForeignKey(Agent, on_delete=models.SET_NULL, null=True, related_name="%(class)ss")
    reviewer = models.ForeignKey(Agent, on_delete=models.SET_NULL, null=True, related_name="reviewed_%(class)ss")
    queue = models.ForeignKey(Queue, on_delete=models.CASCADE, null=True, related_name="%(class)ss")
    parent = models.ForeignKey(
        "self", on_delete=models.CASCADE, null=True, related_name="children", db_constraint=False
    )
    title = models.CharField(max_length=20, default="")
    closed = models.BooleanField(default=False)
    hot = models.BooleanField(default=False)
    priority = models.IntegerField(null=True)
    due = models.DateTimeField(null=True)
    done = models.DateTimeField(null=True)
    state = models.CharField(max_length=10, default="new")

    class Meta:
        abstract = True


class Ticket(BaseTicket):
    pass


class UncountedTicket(BaseTicket):
    """The same table without a counter, to see what Django does by itself."""


class Watch(models.Model):
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="watches")
    weight = models.BigIntegerField()


class OpenCount(BaseCount):
    agent = key(Agent)
    open_count = models.IntegerField(db_default=0)
    open_points = models.BigIntegerField(db_default=0)


class UrgentCount(BaseCount):
    agent = key(Agent)
    urgent_count = models.IntegerField(db_default=0)


class NewCount(BaseCount):
    queue = key(Queue)
    new_count = models.IntegerField(db_default=0)


class WatchCount(BaseCount):
    agent = key(Agent)
    weight = models.BigIntegerField(db_default=0)
