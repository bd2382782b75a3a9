import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tasks", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="ProjectLotCount",
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
                ("free_count", models.IntegerField(default=0)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="Lot",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "project", "number", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("number", models.IntegerField()),
                ("sold", models.BooleanField(default=False)),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="lots", to="tasks.project"
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
    ]
