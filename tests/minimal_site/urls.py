from django.contrib import admin
from django.urls import path

from notifications_counter.contrib.prometheus import metrics

urlpatterns = [path("admin/", admin.site.urls), path("metrics/", metrics)]
