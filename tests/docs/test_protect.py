"""The user of Redis that the docs recommend can do all that the app does, and needs all that it may."""

import re

import pytest
import redis
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import transaction

import servers
from notifications_counter import events, timeseries
from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification
from notifications_counter.monitoring.status import read_status
from notifications_counter.redis.client import client_of
from tests.docs.test_docs import page
from tests.support import announce, assert_heals, assert_reads, begin_now, entries, notify, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

LINE = re.search(r"^user (counters on .*)$", page("howto/protect.md"), re.MULTILINE)[1]
OF_CONNECTIONS = {"hello", "auth", "client|setinfo", "client|setname", "client", "quit"}
"""Commands with which connections begin and end; whoever may log in may send them, or their refusal does no harm."""


@pytest.fixture
def admin(use, server, other) -> redis.Redis:
    """The cache is on a server on which the app is that user; this is who made it."""
    line = LINE.replace("{nc:", f"{{{options.KEY_PREFIX}:").replace("change-me", "secret")
    other.execute_command("ACL SETUSER", *line.split())
    use(f"redis://counters:secret@{servers.HOST}:{server.port}/1")
    other.config_resetstat()
    return other


def test_everything_works_with_the_permissions_of_the_docs(admin, make_user):
    alice, bob = make_user(), make_user()
    run_checks(tags=["notifications_counter"], include_deployment_checks=True, databases=["default"])
    call_command("flush_counters")
    notify(alice)
    Notification.objects.create(user=bob, title="x")
    with transaction.atomic():
        Notification.objects.filter(user=alice).first().delete()
        begin_now()
        assert_reads(alice, bob)
    assert_reads(alice, bob)
    NotificationController(alice).mark_all_as_read()
    with unread.buffer.client.redis.pubsub() as stream:  # of live updates
        stream.subscribe(unread.buffer.key("live"))
        unread.buffer.listen(60)
        Notification.objects.create(user=alice, title="x")
        stream.unsubscribe()
        wait_until(lambda: (stream.get_message() or {}).get("type") == "unsubscribe")
    call_command("flush_counters")
    announce(unread.buffer, "a part of a process that was killed", [str(alice.pk)])
    for max_age in (3600, 0):
        with entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=max_age):
            unread.heal()
    call_command("recount_counters", "--restored")
    client_of("default").breaker.trip(redis.ConnectionError("a moment of weakness"))
    client_of("default").breaker.retry_at = 0.0
    assert_heals(alice, bob)
    read_status()
    events.record_event({"type": "test", "timestamp": 5})
    (event,) = events.latest(type="test")
    events.latest(before=event)
    events.oldest(after=event)
    events.get_event(event["id"])
    events.count_types()
    events.trim_events(max_age=1, max_length=0)
    timeseries.update_counters({"hits": 1, "misses": 2})
    timeseries.get_counter("hits", 60)
    timeseries.list_counters()
    call_command("clean_counters")
    assert not [entry for entry in admin.acl_log() if entry["object"] not in OF_CONNECTIONS]
    # From Redis 7 on, the name of a subcommand follows after a bar.
    used = {name.removeprefix("cmdstat_").partition("|")[0] for name in admin.info("commandstats")}
    allowed = {word[1:] for word in LINE.split() if word[0] == "+"}
    assert allowed - used <= {"ping"}  # redis-py asks so when it is told to check connections
