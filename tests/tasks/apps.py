from django.apps import AppConfig


class TasksConfig(AppConfig):
    name = "tests.tasks"
    default_auto_field = "django.db.models.BigAutoField"
