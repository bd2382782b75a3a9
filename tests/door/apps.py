from django.apps import AppConfig


class DoorConfig(AppConfig):
    name = "tests.door"
    default_auto_field = "django.db.models.BigAutoField"
