from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("notifications_counter", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Dashboard",
            fields=[],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "dashboard",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("notifications_counter.countershard",),
        ),
    ]
