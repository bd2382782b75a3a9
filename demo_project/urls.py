from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path

from notifications_counter.inbox.views import InboxView, NotificationView

from . import views
from .forms import LoginForm
from .life import KINDS

urlpatterns = [
    path("", InboxView.as_view(kinds=KINDS)),
    path("<int:pk>/", NotificationView.as_view(kinds=KINDS)),
    path("", include("notifications_counter.inbox.urls")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("send/", views.send, name="send"),
    path("table/", views.counts, name="table"),
    path("login/", LoginView.as_view(form_class=LoginForm, redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("admin/", admin.site.urls),
]
