from django.apps import AppConfig


class OtherPackagesConfig(AppConfig):
    name = "tests.other_packages"
    default_auto_field = "django.db.models.BigAutoField"
