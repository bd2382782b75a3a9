"""A database for each tenant. Run by ``test_tenants.py``, because it needs settings of its own."""

import re

import pytest
from django.template import RequestContext, Template
from django.test import RequestFactory

from notifications_counter.models import Notification
from notifications_counter.monitoring import dashboard

from .common import NAMES, User, at, notify, tenants, users  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True, databases=NAMES), pytest.mark.usefixtures("tenants")]


def test_pages_show_the_database_of_its_users() -> None:
    """Each has a user of the same primary key, whose tabs in a browser tell each other nothing."""
    carol = User.objects.create_user(username="carol")
    for number, name in enumerate(NAMES, 1):
        with at(name):
            User.objects.get_or_create(pk=carol.pk, defaults={"username": "carol"})
            Notification.objects.bulk_create(Notification(user_id=carol.pk, title="new") for _ in range(number))
    request = RequestFactory().get("/")
    request.user = carol
    template, counts, tabs = Template("{% load notifications_inbox %}{% badge %} {% badge_script %}"), [], set()
    for name in NAMES:
        with at(name):
            page = template.render(RequestContext(request))
            assert {local.place.alias for local in dashboard.visible()} == {name}
        counts += re.findall('data-count="([^"]*)"', page)
        tabs |= {*re.findall('data-user="([^"]*)"', page)}
    assert counts == ["1", "2", "3"]
    assert len(tabs) == len(NAMES)
