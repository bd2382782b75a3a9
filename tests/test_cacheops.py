"""Beside django-cacheops, which caches what querysets read, and learns of no `update()` and no raw SQL."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

PROGRAM = """
import sys, django
from tests import settings

settings.INSTALLED_APPS.append("cacheops")
settings.CACHEOPS = {"*.*": {"ops": "all", "timeout": 3600}}
settings.CACHEOPS_REDIS = settings.CACHES["default"]["LOCATION"]
django.setup()

from django.core.management import call_command
from django.utils import timezone
from notifications_counter.counters import unread
from notifications_counter.models import Notification

user = unread.pk_of(sys.argv[1])
mine = Notification.objects.filter(user=user)
for number in (1, 2):
    Notification.objects.create(user_id=user, title="x")
    unread.heal()
    assert unread.flush().owners == 1
    assert unread.count(user) == number
    assert unread.top(1) == [(user, number)]
call_command("counting", "off", verbosity=0)
assert unread.count(user) == mine.unread().count() == 2
Notification.objects.all().update(read_at=timezone.now())
assert (unread.count(user), mine.unread().count()) == (0, 2)  # the latter is cached
"""


def test_nothing_that_counts_is_cached(child_environment, server, alice):
    pytest.importorskip("cacheops")
    environment = child_environment | {"TEST_REDIS_URL": server.url}
    subprocess.run([sys.executable, "-c", PROGRAM, str(alice.pk)], env=environment, check=True)
