from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    name = "tests.alone"
    label = "notifications"
    default_auto_field = "django.db.models.BigAutoField"
