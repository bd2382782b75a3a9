from django.apps import AppConfig


class StatementsConfig(AppConfig):
    name = "tests.statements"
    default_auto_field = "django.db.models.BigAutoField"
