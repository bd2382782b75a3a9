"""As it is under WSGI."""

from django.urls import path

from . import urls

urlpatterns = [path("notifications/counts/stream/", urls.no_stream), *urls.urlpatterns]
