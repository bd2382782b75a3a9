"""The inbox: ``path("notifications/", include("notifications_counter.urls"))``."""

from django.urls import path

from .counters import unread
from .exceptions import ConfigurationError
from .inbox import live, views

if unread.disabled:
    raise ConfigurationError(unread.disabled)

app_name = "notifications"

urlpatterns = [
    path("", views.InboxView.as_view(), name="inbox"),
    path("<int:pk>/", views.NotificationView.as_view(), name="open"),
    path("mark-as-read/", views.MarkAsReadView.as_view(), name="mark-as-read"),
    path("mark-as-unread/", views.MarkAsUnreadView.as_view(), name="mark-as-unread"),
    path("delete/", views.DeleteView.as_view(), name="delete"),
    path("unread/", views.UnreadView.as_view(), name="unread"),
    path("unread/stream/", live.stream, name="stream"),
]
