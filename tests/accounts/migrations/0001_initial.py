from django.apps import apps
from django.db import migrations
from django.db.migrations.state import ModelState


class Migration(migrations.Migration):
    """The tables of the models as they are."""

    initial = True

    operations = [
        migrations.CreateModel(state.name, list(state.fields.items()), state.options, state.bases, state.managers)
        for state in map(ModelState.from_model, apps.get_app_config("accounts").get_models())
    ]
