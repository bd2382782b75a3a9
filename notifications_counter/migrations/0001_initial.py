import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.utils import timezone

from notifications_counter.models.fields import ExactCharField


class Migration(migrations.Migration):
    initial = True

    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        migrations.CreateModel(
            name="DatabaseId",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.CharField(max_length=32, verbose_name="id")),
            ],
            options={
                "verbose_name": "id of the database",
                "verbose_name_plural": "id of the database",
            },
        ),
        migrations.CreateModel(
            name="DoubtRequest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("counter", ExactCharField(max_length=100, verbose_name="counter")),
                ("owner_key", models.TextField(blank=True, verbose_name="owner key")),
                ("everyone", models.BooleanField(default=False, verbose_name="everyone")),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created at")),
            ],
            options={
                "verbose_name": "doubt request",
                "verbose_name_plural": "doubt requests",
            },
        ),
        migrations.CreateModel(
            name="UserNotificationsCount",
            fields=[
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated at")),
                (
                    "user",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
                ("unread_count", models.IntegerField(db_default=0, verbose_name="unread count")),
                ("unseen_count", models.IntegerField(db_default=0, verbose_name="unseen count")),
            ],
            options={
                "verbose_name": "unread count",
                "verbose_name_plural": "unread counts",
            },
        ),
        migrations.CreateModel(
            name="CounterState",
            fields=[
                (
                    "counter",
                    ExactCharField(max_length=100, primary_key=True, serialize=False, verbose_name="counter"),
                ),
                ("mark", models.CharField(blank=True, max_length=100, verbose_name="mark")),
                ("walk_token", models.CharField(blank=True, max_length=32, verbose_name="token of the walk")),
                ("walk_speed", models.CharField(blank=True, max_length=10, verbose_name="speed")),
                ("walked_to", models.TextField(null=True, verbose_name="walked to")),
                ("walk_began_at", models.DateTimeField(default=timezone.now, verbose_name="walk began at")),
                ("walk_resumes_at", models.DateTimeField(default=timezone.now, verbose_name="walk resumes at")),
                ("wrong", models.PositiveBigIntegerField(default=0, verbose_name="wrong counts")),
                ("wrong_at", models.DateTimeField(null=True, verbose_name="last wrong count at")),
                ("skipped", models.PositiveBigIntegerField(default=0, verbose_name="skipped counts")),
                ("skipped_at", models.DateTimeField(null=True, verbose_name="last skipped count at")),
                ("fingerprint", models.CharField(blank=True, max_length=32, verbose_name="declaration")),
                ("declared_at", models.DateTimeField(default=timezone.now, null=True, verbose_name="in force since")),
                ("replaced", models.TextField(blank=True, verbose_name="replaced declarations")),
                ("healed_at", models.DateTimeField(default=timezone.now, verbose_name="last heal at")),
                ("off_since", models.DateTimeField(null=True, verbose_name="off since")),
            ],
            options={
                "verbose_name": "state of a counter",
                "verbose_name_plural": "states of counters",
            },
        ),
        migrations.CreateModel(
            name="Dashboard",
            fields=[],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "dashboard",
                "permissions": [
                    ("flush_unread_counts", "Can flush unread counts"),
                    ("recount_unread_counts", "Can recount unread counts"),
                ],
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("notifications_counter.counterstate",),
        ),
        migrations.CreateModel(
            name="Notification",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", ExactCharField(blank=True, max_length=64, verbose_name="kind")),
                ("title", models.CharField(max_length=255, verbose_name="title")),
                ("body", models.TextField(blank=True, verbose_name="body")),
                ("url", models.CharField(blank=True, max_length=2000, verbose_name="URL")),
                ("data", models.JSONField(blank=True, default=dict, verbose_name="data")),
                (
                    "created_at",
                    models.DateTimeField(default=timezone.now, editable=False, verbose_name="created at"),
                ),
                ("seen_at", models.DateTimeField(blank=True, null=True, verbose_name="seen at")),
                ("read_at", models.DateTimeField(blank=True, null=True, verbose_name="read at")),
                (
                    "user",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
            ],
            options={
                "verbose_name": "notification",
                "verbose_name_plural": "notifications",
                "ordering": ["-created_at", "-pk"],
                "abstract": False,
                "indexes": [
                    models.Index(fields=["user", "read_at", "seen_at"], name="nc_user_read"),
                    models.Index(fields=["user", "-created_at", "-id"], name="nc_user_created"),
                ],
            },
        ),
        migrations.CreateModel(
            name="UserKindNotificationsCount",
            fields=[
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated at")),
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "user", "kind", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("kind", ExactCharField(blank=True, max_length=64, verbose_name="kind")),
                ("unread_count", models.IntegerField(db_default=0, verbose_name="unread count")),
                (
                    "user",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
            ],
            options={
                "verbose_name": "unread count of a kind",
                "verbose_name_plural": "unread counts by kind",
            },
        ),
    ]
