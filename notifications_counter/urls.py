"""The inbox: ``path("notifications/", include("notifications_counter.urls"))``."""

from django.urls import path

from .inbox import live, views

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
