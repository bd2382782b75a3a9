from django.apps import AppConfig


class CompositeOwnersConfig(AppConfig):
    name = "tests.composite_owners"
    default_auto_field = "django.db.models.BigAutoField"
