"""Streams of counts: real connections to a real ASGI server, which runs in a thread of this process."""

import gc
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPConnection, IncompleteRead
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.core.asgi import get_asgi_application
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

import servers
from notifications_counter.counters import Counter, unread
from notifications_counter.inbox import live as live_module
from notifications_counter.inbox import stream as stream_module
from notifications_counter.inbox.badges import badge_of, name_of
from notifications_counter.inbox.live import feeds
from notifications_counter.models import Notification
from tests.asgi import serving
from tests.support import CLUSTER, PATIENCE, entries, notify, wait_until
from tests.tasks.counters import open_tasks
from tests.tasks.models import Project, Task

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "IDLE", 0.05)
    monkeypatch.setattr(stream_module, "RETRY", (1, 1))
    monkeypatch.setattr(stream_module, "HEARTBEAT", 300.0)  # however slow the machine is, nothing is repeated


@pytest.fixture
def port() -> Iterator[int]:
    """An ASGI server. In the end no stream, thread or connection is left of it."""
    with serving(get_asgi_application()) as port:
        yield port
        wait_until(lambda: not feeds._by_badge and feeds._thread is None)


class Events:
    """What a browser receives. A timeout if nothing comes."""

    def __init__(self, port: int, user: Any, badges: Iterable[str] = (), **headers: str):
        client = Client()
        client.force_login(user)
        cookie = f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
        self.connection = HTTPConnection(servers.HOST, port, timeout=PATIENCE)
        headers = {
            "Host": "testserver",
            "Cookie": cookie,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        query = urlencode([("badge", name) for name in badges])
        self.connection.request("GET", f"{reverse('notifications:stream')}?{query}", headers=headers)
        self.response = self.connection.getresponse()
        self.retry = self.next_block()

    def next_block(self) -> dict[str, str]:
        """Fields up to the next empty line; {} at the end of the stream."""
        block: dict[str, str] = {}
        while line := self.response.readline().decode().rstrip("\n"):
            name, _, value = line.partition(":")
            block[name] = value.strip()
        return block

    def next_counts(self) -> dict[str, int]:
        block = self.next_block()
        assert block["event"] == "counts"
        counts = json.loads(block["data"])
        assert block["id"] == "-".join(map(str, counts.values()))
        return counts

    def next_count(self) -> int:
        (count,) = self.next_counts().values()
        return count

    def reach(self, count: int) -> int:
        """Wait for a count; returns how many events came until it did."""
        events = 1
        while self.next_count() != count:
            events += 1
        return events

    def close(self) -> None:
        self.response.close()
        self.connection.close()


@pytest.fixture
def listen(port: int) -> Iterator[Callable[..., Events]]:
    """A function that opens a stream."""
    opened: list[Events] = []

    def open_stream(user: Any, *badges: str, **headers: str) -> Events:
        opened.append(Events(port, user, badges, **headers))
        return opened[-1]

    yield open_stream
    for events in opened:
        events.close()


@pytest.fixture
def heard(listen) -> Callable[..., Events]:
    """The same, once changes are published."""

    def open_stream(user: Any) -> Events:
        events = listen(user)
        events.next_count()
        wait_until(lambda: publishes())
        return events

    return open_stream


def publishes(counter: Counter = unread) -> bool:
    return all(b.client.call("EXISTS", b.keys.listeners) for b in counter.buffers)


def listeners(client: redis.Redis) -> int:
    """Connections of this test that have subscribed."""
    return client.pubsub_numsub(unread.buffers[0].keys.live)[0][1]


# ---------------------------------------------------------------------- events
@pytest.mark.keys
@pytest.mark.usefixtures("healed")
def test_the_count_comes_at_once_and_whenever_it_changes(listen, alice):
    notifications = notify(alice)
    events = listen(alice)
    assert events.response.status == 200
    assert events.response.headers["Content-Type"] == "text/event-stream"
    assert events.response.headers["X-Accel-Buffering"] == "no"
    assert "no-transform" in events.response.headers["Cache-Control"]
    assert_nobody_else_gets(events.response.headers)
    assert set(events.retry) == {"retry"}
    assert events.next_count() == 3
    wait_until(publishes)
    notifications[0].mark_as_read()
    assert events.next_count() == 2
    Notification.objects.filter(user=alice).update(read_at=timezone.now())
    assert events.next_count() == 0
    notify(alice, 2)
    assert events.next_count() == 2


@pytest.mark.usefixtures("healed")
def test_many_changes_are_few_events(heard, alice):
    events = heard(alice)
    started = time.monotonic()
    for _ in range(30):
        Notification.objects.create(user=alice, title="x")
        time.sleep(0.02)
    number = events.reach(30)
    assert number <= 2 + (time.monotonic() - started) / live_module.GAP


@pytest.mark.usefixtures("few_healed")
def test_badges_of_any_counter_and_owner(listen, alice, bob, redis_client):
    project, other = Project.objects.create(), Project.objects.create()
    mine = [name_of(badge_of(open_tasks, one), alice) for one in (project, other)]
    theirs = name_of(badge_of(open_tasks, project), bob)
    plain = listen(alice)
    assert plain.next_counts() == {"unread": 0}
    wait_until(publishes)
    events = listen(alice, *mine, theirs, "open_tasks")
    assert events.next_counts() == {"unread": 0, mine[0]: 0, mine[1]: 0}
    wait_until(lambda: publishes(open_tasks))
    task = Task.objects.create(project=project)
    assert events.next_counts() == {"unread": 0, mine[0]: 1, mine[1]: 0}
    Task.objects.filter(pk=task.pk).update(project=other)
    while events.next_counts() != {"unread": 0, mine[0]: 0, mine[1]: 1}:
        pass
    assert listeners(redis_client) == 1
    notify(alice, 2)
    assert events.next_counts()["unread"] == 2
    assert plain.next_counts() == {"unread": 2}


@pytest.mark.parametrize(("known", "told"), [("3", False), ("2", True), ("x", True)])
def test_who_comes_again_is_told_only_news(listen, alice, known, told):
    notify(alice)
    events = listen(alice, Last_Event_ID=known)
    if told:
        assert events.next_block() == {"event": "counts", "id": "3", "data": '{"unread": 3}'}
    wait_until(publishes)
    notify(alice, 1)
    assert events.next_count() == 4


def test_a_stream_ends_so_that_the_browser_shows_again_who_it_is(listen, monkeypatch, alice):
    monkeypatch.setattr(stream_module, "HEARTBEAT", 0.05)
    monkeypatch.setattr(stream_module, "MAX_AGE", 0.2)
    events = listen(alice)
    assert events.next_count() == 0
    while block := events.next_block():
        assert block["id"] == "0"


def ends(events: Events) -> bool:
    """Read up to the end of a stream."""
    while events.next_block():
        pass
    return True


def test_a_stream_that_nobody_reads_ends_as_well(listen, with_kinds, monkeypatch, alice):
    monkeypatch.setattr(stream_module, "HEARTBEAT", 0.01)
    monkeypatch.setattr(stream_module, "MAX_AGE", 5.0)
    monkeypatch.setattr(stream_module, "GRACE", 0.1)
    Notification.objects.bulk_create(Notification(user=alice, title="x", kind=f"{i:0>64}") for i in range(3000))
    events = listen(alice)
    wait_until(lambda: not feeds._by_badge)
    with pytest.raises(IncompleteRead):  # it was in the middle of an event, and not asked for the next
        events.response.read()


# ---------------------------------------------------------------------- access
def log_out(user: Any) -> None:
    Session.objects.all().delete()


def deactivate(user: Any) -> None:
    type(user).objects.update(is_active=False)


def delete(user: Any) -> None:
    user.delete()


def change_password(user: Any) -> None:
    user.set_password("new")
    user.save()


@pytest.mark.parametrize(
    ("leave", "engine"),
    [(log_out, "db"), (deactivate, "db"), (delete, "signed_cookies"), (change_password, "signed_cookies")],
)
def test_a_stream_ends_with_the_login(settings, request, monkeypatch, alice, leave, engine):
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    monkeypatch.setattr(stream_module, "HEARTBEAT", 0.05)
    events = request.getfixturevalue("listen")(alice)
    assert [events.next_count() for _ in range(3)] == [0, 0, 0]
    leave(alice)
    assert ends(events)


def test_a_stream_of_a_user_without_a_session(settings, request, monkeypatch, alice, bob):
    """A middleware says who it is, as for a token, or for an admin who acts for somebody else."""
    monkeypatch.setattr(stream_module, "HEARTBEAT", 0.05)
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.as_alice"]
    notify(alice)
    events = request.getfixturevalue("listen")(bob)
    assert [events.next_count() for _ in range(3)] == [3, 3, 3]
    deactivate(alice)
    assert ends(events)


def as_alice(get_response: Callable[..., Any]) -> Callable[..., Any]:
    def middleware(request: Any) -> Any:
        request.user = get_user_model().objects.get(username="alice")
        return get_response(request)

    return middleware


def test_a_user_has_so_many_streams(listen, port, alice, bob, monkeypatch):
    monkeypatch.setattr(live_module, "MAX_STREAMS", 3)
    streams = [listen(alice) for _ in range(3)]
    assert listen(alice).response.status == 429
    assert listen(bob).next_count() == 0
    streams.pop().close()
    wait_until(lambda: feeds._numbers.total() == 3)
    assert listen(alice).next_count() == 0


def test_nobody_is_refused(port):
    connection = HTTPConnection(servers.HOST, port, timeout=PATIENCE)
    connection.request("GET", reverse("notifications:stream"), headers={"Host": "testserver"})
    response = connection.getresponse()
    assert response.status == 401
    assert json.load(response)["detail"]
    assert_nobody_else_gets(response.headers)
    connection.close()


def assert_nobody_else_gets(headers: Any) -> None:
    """No cache shows a response to another user."""
    assert {"private", "no-cache"} <= set(headers["Cache-Control"].split(", "))
    assert headers["Vary"] == "Cookie"


@pytest.mark.usefixtures("healed")
def test_what_something_else_publishes_is_ignored(listen, alice, caplog, request):
    request.addfinalizer(gc.enable)
    gc.disable()  # a finalizer that ran while the last message is parsed would fail
    events = listen(alice)
    assert events.next_count() == 0
    wait_until(publishes)
    keys, client = unread.buffers[0].keys, unread.buffers[0].client.redis
    for message in ("x", "1", "null", "[[]]", "[{}]", b"\xff", '["x"]', "[" * 100_000):
        client.publish(keys.live, message)
    Notification.objects.create(user=alice, title="x")
    assert events.next_count() == 1
    assert not caplog.records


def test_streams_need_asgi(alice, caplog):
    """A script that gets no stream polls; a worker of WSGI would be held for as long as the page is open. A browser
    would show a status from 400 on as an error."""
    client = Client()
    client.force_login(alice)
    response = client.get(reverse("notifications:stream"))
    assert response.status_code == 204
    assert_nobody_else_gets(response.headers)
    assert not caplog.records
    assert client.post(reverse("notifications:stream")).status_code == 405


def test_compression_holds_nothing_back(settings, alice, request):
    settings.MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *settings.MIDDLEWARE]
    events = request.getfixturevalue("listen")(alice, Accept_Encoding="gzip")
    assert events.response.headers["Content-Encoding"] == "identity"
    assert events.next_count() == 0


# ----------------------------------------------------------------- connections
@pytest.mark.usefixtures("healed")
def test_one_connection_and_one_thread_for_all_streams(heard, make_user, redis_client):
    assert listeners(redis_client) == 0
    threads = threading.active_count()
    users = [make_user() for _ in range(10)]
    streams = [heard(user) for user in users for _ in range(3)]
    assert listeners(redis_client) == 1
    wait_until(lambda: threading.active_count() == threads + 1)
    for number, user in enumerate(users, 1):
        notify(user, number)
    assert [events.next_count() for events in streams] == [number for number in range(1, 11) for _ in range(3)]
    for events in streams:
        events.close()
    wait_until(lambda: not feeds._by_badge)
    wait_until(lambda: listeners(redis_client) == 0)
    wait_until(lambda: threading.active_count() == threads)


def test_redis_restarts(server, use, heard, alice):
    use(server.url)
    unread.heal()
    events = heard(alice)
    with entries(RETRY_AFTER=0):
        server.kill()
        Notification.objects.create(user=alice, title="x")
        assert events.next_count() == 1  # rows are counted
        server.start()
        wait_until(publishes)
        Notification.objects.create(user=alice, title="x")
        assert events.next_count() == 2


def test_a_cluster(use, listen, make_user):
    with servers.redis_cluster() as nodes, entries(SHARDS=6):
        client = use(nodes[0].url, CONNECTION_FACTORY=CLUSTER)
        unread.heal()
        users = [make_user() for _ in range(10)]
        streams = [listen(user) for user in users]
        assert [events.next_count() for events in streams] == [0] * 10
        wait_until(publishes)
        Notification.objects.bulk_create(Notification(user=user, title="x") for user in users)
        assert [events.next_count() for events in streams] == [1] * 10
        nodes_heard = []
        for node in nodes:
            with redis.Redis.from_url(node.url) as of_node:
                nodes_heard.append(sum(n for _, n in of_node.pubsub_numsub(*[b.keys.live for b in unread.buffers])))
        assert sorted(nodes_heard) == [0, 0, 6]
        for events in streams:
            events.close()
        wait_until(lambda: feeds._thread is None)
        client.redis.close()


# -------------------------------------------------------------------- messages
@pytest.fixture
def messages(healed, redis_client) -> Iterator[Callable[[], list[str] | None]]:
    """A function that returns the users of the next message, None if there is none."""
    buffer = unread.buffers[0]
    with redis_client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(buffer.keys.live)
        wait_until(lambda: listeners(redis_client))

        def next_message() -> list[str] | None:
            redis_client.publish(buffer.keys.live, "null")  # so that there is always one
            while not (message := pubsub.get_message(timeout=PATIENCE)):
                pass
            users = json.loads(message["data"])
            while users is not None and json.loads(wait_until(lambda: pubsub.get_message())["data"]) is not None:
                pass
            return users

        yield next_message


def test_what_is_published(messages, alice, bob):
    notify(alice)
    assert messages() is None  # there are no streams
    unread.buffers[0].listen(60)
    notify(alice)
    assert messages() == [str(alice.pk)]
    Notification.objects.filter(user=alice).mark_as_read()
    assert messages() == [str(alice.pk)]
    Notification.objects.filter(user=alice).mark_as_read()  # changes nothing
    assert messages() is None
    unread.buffers[0].doubt([str(bob.pk)])
    assert messages() == [str(bob.pk)]
    unread.recount([alice, bob])  # corrects nothing
    assert messages() is None
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {Notification._meta.db_table}")
    unread.recount([alice])
    assert messages() is None
    Notification.objects.bulk_create(Notification(user=user, title="x") for user in [alice, bob])
    assert sorted(messages()) == sorted([str(alice.pk), str(bob.pk)])
