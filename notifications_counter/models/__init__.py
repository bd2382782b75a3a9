"""The models. A site uses Notification and UserNotificationsCount, and subclasses BaseCount for counters of its own."""

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
