from importlib import import_module

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class InboxConfig(AppConfig):
    name = "notifications_counter.inbox"
    label = "notifications_inbox"
    verbose_name = _("Inbox")

    def ready(self) -> None:
        import_module("notifications_counter.models")  # ImproperlyConfigured: that app must be installed, too
