from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class NotificationsCounterConfig(AppConfig):
    name = "notifications_counter"
    verbose_name = _("Notification counters")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from .conf import SETTING

        if not hasattr(settings, SETTING):
            setattr(settings, SETTING, {})  # one that is missing costs an exception at each look

        from . import checks  # noqa: F401
        from .writes import door

        autodiscover_modules("counters")
        door.install()
