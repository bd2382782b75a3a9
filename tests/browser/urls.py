from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.urls import path

from tests import urls

PAGE = """{% load notifications_inbox %}<!doctype html><title>page</title>
<body>{% badge max=2 %}{% badge %}<span data-badge="unread">own</span>{% badge_script %}</body>"""
OTHER_PAGE = """{% load notifications_inbox %}<!doctype html><title>page</title>
<body>{% for project in projects %}{% badge counter="open_tasks" owner=project %}{% endfor %}
{% for user in users %}{% badge counter="unread" owner=user %}{% endfor %}{% badge_script %}</body>"""
POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'"


def page(request: HttpRequest) -> HttpResponse:
    text = engines["django"].from_string(PAGE).render({}, request)
    return HttpResponse(text, headers={"Content-Security-Policy": POLICY})


def projects(request: HttpRequest) -> HttpResponse:
    """The badges of the projects and users that the query string names."""
    owners = {"projects": request.GET.getlist("project"), "users": request.GET.getlist("user")}
    text = engines["django"].from_string(OTHER_PAGE).render(owners, request)
    return HttpResponse(text, headers={"Content-Security-Policy": POLICY})


def icon(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=204)


async def no_stream(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse(status=204)


urlpatterns = [path("page/", page), path("projects/", projects), path("favicon.ico", icon), *urls.urlpatterns]
