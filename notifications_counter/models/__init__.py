"""The models. A site uses Notification and UserNotificationsCount, and subclasses BaseCount for counters of its own."""

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

if not apps.is_installed("notifications_counter"):
    raise ImproperlyConfigured("Add 'notifications_counter' to INSTALLED_APPS.")

from .bookkeeping import CounterState as CounterState
from .bookkeeping import Dashboard as Dashboard
from .bookkeeping import DatabaseId as DatabaseId
from .bookkeeping import DoubtRequest as DoubtRequest
from .bookkeeping import Mark as Mark
from .notification import Notification as Notification
from .notification import NotificationQuerySet as NotificationQuerySet
from .totals import BaseCount as BaseCount
from .totals import UserKindNotificationsCount as UserKindNotificationsCount
from .totals import UserNotificationsCount as UserNotificationsCount
