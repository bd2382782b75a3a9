from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class InboxConfig(AppConfig):
    name = "notifications_counter.inbox"
    label = "notifications_inbox"
    verbose_name = _("Inbox")
