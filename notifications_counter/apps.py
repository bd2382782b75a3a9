from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.translation import gettext_lazy as _

from .internals import autodiscover_modules


class NotificationsCounterConfig(AppConfig):
    name = "notifications_counter"
    verbose_name = _("Notification counters")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401
        from .databases.identity import look_up_after_migrate
        from .monitoring.history import keep
        from .signals import event_reported
        from .upkeep import new_tables
        from .upkeep.distrust import distrust, why_unhooked
        from .writes import hook

        autodiscover_modules("counters")
        event_reported.connect(keep)
        if reason := why_unhooked():
            distrust(reason)
        else:
            hook.install()
        pre_migrate.connect(new_tables.note_missing, sender=self)
        post_migrate.connect(new_tables.declare_made, sender=self)
        post_migrate.connect(look_up_after_migrate, sender=self)
