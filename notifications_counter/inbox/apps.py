from django.apps import AppConfig, apps
from django.utils.translation import gettext_lazy as _


class InboxConfig(AppConfig):
    name = "notifications_counter.inbox"
    label = "notifications_inbox"
    verbose_name = _("Inbox")

    def ready(self) -> None:
        apps.get_app_config("notifications_counter")  # LookupError: it must be installed, too
