"""A database for each tenant. Run by ``test_tenants.py``, because it needs settings of its own."""

import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections
from django.template import RequestContext, Template
from django.test import RequestFactory

from notifications_counter import tasks
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.monitoring import dashboard
from tests.support import doubted, is_ready

from .common import NAMES, User, at, notify, tenants, users  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True, databases=NAMES), pytest.mark.usefixtures("tenants")]


@pytest.mark.parametrize("work", [tasks.flush, "flush_counters"])
def test_a_database_that_is_out_of_reach_keeps_no_other_waiting(work: Any, monkeypatch: Any) -> None:
    call_command("flush_counters", verbosity=0)
    for name in NAMES:
        with at(name):
            assert is_ready()
            notify()
            unread.buffer.doubt([str(users()[0].pk)])
    connections["blue"].close()
    with monkeypatch.context() as patch:
        patch.setitem(connections["blue"].settings_dict, "NAME", "/nowhere/tests.sqlite3")
        with pytest.raises((OperationalError, CommandError), match="unable to open"):
            work() if callable(work) else call_command(work, verbosity=0)
    left = {}
    for name in NAMES:
        with at(name):
            left[name] = len(doubted())
    assert left == {"default": 0, "blue": 1, "green": 0}


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
