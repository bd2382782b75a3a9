from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests import urls


def nothing(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=204)


async def no_stream(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse(status=204)


urlpatterns = [path("favicon.ico", nothing), *urls.urlpatterns]
