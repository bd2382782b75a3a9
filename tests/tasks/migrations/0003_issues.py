import uuid
from decimal import Decimal

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tasks", "0002_lots"),
    ]

    operations = [
        migrations.CreateModel(
            name="Issue",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("closed", models.BooleanField(default=False)),
                ("urgent", models.BooleanField(default=False)),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="issues", to="tasks.project"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ProjectIssueCount",
            fields=[
                ("flushed_batch", models.BigIntegerField(default=0, editable=False, verbose_name="flushed batch")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated at")),
                (
                    "project",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="tasks.project",
                    ),
                ),
                ("open_count", models.IntegerField(default=0)),
                ("urgent_count", models.IntegerField(default=0)),
                ("urgent_batch", models.BigIntegerField(default=0, editable=False)),
                ("note", models.CharField(default="100% new", max_length=20)),
                ("empty", models.CharField(max_length=20)),
                ("token", models.UUIDField(default=uuid.uuid4)),
                ("rate", models.DecimalField(decimal_places=2, default=Decimal("1.50"), max_digits=4)),
                ("options", models.JSONField(default=dict)),
                ("muted", models.BooleanField(default=True)),
                ("since", models.DateTimeField(auto_now_add=True)),
                ("level", models.IntegerField(db_default=3)),
                (
                    "campaign",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="tasks.campaign"
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
    ]
