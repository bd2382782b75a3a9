"""The inbox: ``path("notifications/", include("notifications_counter.urls"))``."""

from django.urls import path

from . import views

app_name = "notifications"

urlpatterns = [
    path("unread/", views.UnreadView.as_view(), name="unread"),
]
