from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from . import views

urlpatterns = [
    path("", views.inbox, name="inbox"),
    path("badge/", views.badge, name="badge"),
    path("send/", views.send, name="send"),
    path("counts/", views.counts, name="counts"),
    path("read-all/", views.mark_all_as_read, name="read-all"),
    path("delete-read/", views.delete_read, name="delete-read"),
    path("<int:pk>/read/", views.mark_as_read, name="read"),
    path("<int:pk>/unread/", views.mark_as_unread, name="unread"),
    path("<int:pk>/delete/", views.delete, name="delete"),
    path("login/", LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("admin/", admin.site.urls),
]
