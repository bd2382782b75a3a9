"""The inbox: ``path("notifications/", include("notifications_counter.inbox.urls"))``."""

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.urls import path

from . import api, stream, views

if not apps.is_installed("notifications_counter.inbox"):
    raise ImproperlyConfigured("Add 'notifications_counter.inbox' to INSTALLED_APPS: the inbox's templates are in it.")

app_name = "notifications"

urlpatterns = [
    path("", views.InboxView.as_view(), name="inbox"),
    path("<int:pk>/", views.NotificationView.as_view(), name="open"),
    path("mark-as-read/", views.MarkAsReadView.as_view(), name="mark-as-read"),
    path("mark-as-unread/", views.MarkAsUnreadView.as_view(), name="mark-as-unread"),
    path("delete/", views.DeleteView.as_view(), name="delete"),
    path("counts/", api.CountsAPI.as_view(), name="counts"),
    path("counts/stream/", stream.stream, name="stream"),
    path("api/", api.InboxAPI.as_view(), name="api-inbox"),
    path("api/mark-as-seen/", api.MarkAsSeenAPI.as_view(), name="api-mark-as-seen"),
    path("api/mark-as-read/", api.MarkAsReadAPI.as_view(), name="api-mark-as-read"),
    path("api/mark-as-unread/", api.MarkAsUnreadAPI.as_view(), name="api-mark-as-unread"),
    path("api/delete/", api.DeleteAPI.as_view(), name="api-delete"),
    path("api/openapi.json", api.openapi, name="openapi"),
    path("api/<pk>/", api.NotificationAPI.as_view(), name="api-open"),
]
