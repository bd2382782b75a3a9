from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from .internals import autodiscover_modules


class NotificationsCounterConfig(AppConfig):
    name = "notifications_counter"
    verbose_name = _("Notification counters")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401
        from .writes import door, totals

        autodiscover_modules("counters")
        door.install()
        totals.listen()
