from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests import urls


def icon(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=204)


urlpatterns = [path("favicon.ico", icon), *urls.urlpatterns]
