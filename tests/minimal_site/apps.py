from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    name = "tests.minimal_site"
    label = "notifications"
    default_auto_field = "django.db.models.BigAutoField"
