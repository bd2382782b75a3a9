import uuid

from django.db import migrations, models

from tests.accounts.models import awkward_key

KEYS = {
    "User": models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
    "UUIDUser": models.UUIDField(primary_key=True, serialize=False, default=uuid.uuid4),
    "StringUser": models.CharField(primary_key=True, serialize=False, max_length=100, default=awkward_key),
}


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            name,
            fields=[
                ("id", key),
                ("password", models.CharField(max_length=128, verbose_name="password")),
                ("last_login", models.DateTimeField(blank=True, null=True, verbose_name="last login")),
                ("username", models.CharField(max_length=150, unique=True)),
                ("is_active", models.BooleanField(default=True)),
                ("is_superuser", models.BooleanField(default=False)),
            ],
        )
        for name, key in KEYS.items()
    ]
