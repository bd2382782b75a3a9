from django.apps import AppConfig


class ForeignConfig(AppConfig):
    name = "tests.foreign"
    default_auto_field = "django.db.models.BigAutoField"
