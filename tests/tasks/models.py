"""What an application of its own may count, and every way in which its models may be related."""

import uuid

from django.db import models
from django.db.models.functions import Now

from notifications_counter.models import BaseCount


def key(model):
    """The primary key of totals of this model, which may outlive it."""
    return models.OneToOneField(
        model, on_delete=models.DO_NOTHING, primary_key=True, db_constraint=False, related_name="+"
    )


class Project(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


class Campaign(models.Model):
    """Its deletion takes tasks along that it does not own."""


class Task(models.Model):
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="tasks")
    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="tasks", null=True)
    title = models.CharField(max_length=100)
    done = models.BooleanField(default=False)


class UrgentTask(Task):
    class Meta:
        proxy = True


class RecurringTask(Task):
    interval = models.DurationField(null=True)


class ProjectTaskCount(BaseCount):
    project = key(Project)
    open_count = models.IntegerField(db_default=0)


class Transfer(models.Model):
    """Counted for either end by a counter of its own. No cascade hangs on it, so that one statement can delete many."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    sender = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="sent")
    receiver = models.ForeignKey(Project, on_delete=models.SET_NULL, related_name="received", null=True)
    state = models.CharField(max_length=10, default="open")


class SenderCount(BaseCount):
    sender = key(Project)
    sent_count = models.IntegerField(db_default=0)


class ReceiverCount(BaseCount):
    receiver = key(Project)
    received_count = models.IntegerField(db_default=0)


class Issue(models.Model):
    """Two counters store their totals in the same rows."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="issues")
    closed = models.BooleanField(default=False)
    urgent = models.BooleanField(default=False)


class ProjectIssueCount(BaseCount):
    """Not all of it is about counts."""

    project = key(Project)
    open_count = models.IntegerField(db_default=0)
    urgent_count = models.IntegerField(db_default=0)
    note = models.CharField(max_length=20, db_default="100% new")
    since = models.DateTimeField(db_default=Now())
    level = models.IntegerField(db_default=3)
    campaign = models.ForeignKey(Campaign, on_delete=models.SET_NULL, related_name="+", null=True)


class Topic(models.Model):
    id = models.CharField(primary_key=True, max_length=100)


class Post(models.Model):
    topic = models.ForeignKey(Topic, on_delete=models.CASCADE, related_name="posts")
    hidden = models.BooleanField(default=False)


class TopicPostCount(BaseCount):
    topic = key(Topic)
    visible_count = models.IntegerField(db_default=0)
