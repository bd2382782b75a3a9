"""Streams of counts: real connections to a real ASGI server, which runs in a thread of this process."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.core.asgi import get_asgi_application
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils import timezone

import servers
from notifications_counter.counters import Counter, unread
from notifications_counter.inbox import live as live_module
from notifications_counter.inbox import stream as stream_module
from notifications_counter.inbox.badges import badge_of, name_of
from notifications_counter.inbox.live import feeds
from notifications_counter.models import Notification
from notifications_counter.redis.calls import command
from tests.asgi import serving
from tests.support import CLUSTER, PATIENCE, announce, create, entries, notify, unheard, wait_until
from tests.tasks.counters import open_tasks
from tests.tasks.models import Project, Task

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "IDLE", 0.05)
    monkeypatch.setattr(stream_module, "RETRY", (1, 1))
    # However slow the machine is, nothing is repeated or found without a message.
    monkeypatch.setattr(stream_module, "HEARTBEAT", 300.0)
    monkeypatch.setattr(live_module, "REREAD", 300.0)


@pytest.fixture
def port() -> Iterator[int]:
    """An ASGI server. In the end no stream, thread or connection is left of it."""
    with serving(get_asgi_application()) as port:
        yield port
        wait_until(lambda: not feeds._by_badge and feeds._thread is None)


def ask(port: int, user: Any = None, badges: Iterable[str] = ()) -> HTTPConnection:
    """Ask for a stream. The response may come later."""
    client, headers = Client(), {"Host": "testserver"}
    if user:
        client.force_login(user)
        headers["Cookie"] = f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
    connection = HTTPConnection(servers.HOST, port, timeout=PATIENCE)
    address = f"{reverse('notifications:stream')}?{urlencode([('badge', name) for name in badges])}"
    connection.request("GET", address, headers=headers)
    return connection


class Events:
    """What a browser receives. A timeout if nothing comes."""

    def __init__(self, port: int, user: Any, badges: Iterable[str]):
        self.connection = ask(port, user, badges)
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
        return json.loads(block["data"])

    def next_count(self) -> int:
        (count,) = self.next_counts().values()
        return count

    def close(self) -> None:
        self.response.close()
        self.connection.close()


@pytest.fixture
def listen(port: int) -> Iterator[Callable[..., Events]]:
    """A function that opens a stream."""
    opened: list[Events] = []

    def open_stream(user: Any, *badges: str) -> Events:
        opened.append(Events(port, user, badges))
        return opened[-1]

    yield open_stream
    for events in opened:
        events.close()


def publishes(counter: Counter = unread) -> bool:
    return counter.buffer.client.ask(command("EXISTS", counter.buffer.key("listeners"))) == [1]


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
    unheard(Notification.objects.all().delete)
    unread.buffer.doubt([str(alice.pk)])
    assert events.next_count() == 0
    announce(unread.buffer, "killed", [str(alice.pk)])
    unheard(create, alice)
    with entries(HEAL_AFTER=0):
        unread.heal()
    assert events.next_count() == 1


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
    [(_, number)] = redis_client.pubsub_numsub(unread.buffer.key("live"))
    assert number == 1  # connection for all streams of this process
    notify(alice, 2)
    assert events.next_counts()["unread"] == 2
    assert plain.next_counts() == {"unread": 2}


# ---------------------------------------------------------------------- access
def test_a_stream_ends_so_that_the_browser_shows_again_who_it_is(listen, monkeypatch, alice):
    monkeypatch.setattr(stream_module, "HEARTBEAT", 0.05)
    monkeypatch.setattr(stream_module, "MAX_AGE", 0.2)
    events = listen(alice)
    while block := events.next_block():
        assert block["data"] == '{"unread": 0}'


@pytest.mark.parametrize(
    ("leave", "engine"),
    [
        (lambda: Session.objects.all().delete(), "db"),
        (lambda: get_user_model().objects.update(password="new"), "signed_cookies"),
    ],
    ids=["log out", "change the password"],
)
def test_a_stream_ends_with_the_login(settings, request, monkeypatch, alice, leave, engine):
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    monkeypatch.setattr(stream_module, "HEARTBEAT", 0.05)
    monkeypatch.setattr(stream_module, "RECHECK", 0)
    events = request.getfixturevalue("listen")(alice)
    assert [events.next_count() for _ in range(3)] == [0, 0, 0]
    leave()
    while events.next_block():
        pass


@pytest.mark.usefixtures("healed")
def test_who_has_logged_out_gets_no_other_count(listen, monkeypatch, alice):
    monkeypatch.setattr(stream_module, "RECHECK", 0)
    events = listen(alice)
    assert events.next_count() == 0
    wait_until(publishes)
    Session.objects.all().delete()
    create(alice)
    assert events.next_block() == {}


@pytest.mark.parametrize(("limit", "status"), [("of the user", 429), ("of the process", 503)])
def test_there_are_so_many_streams_even_if_they_open_at_once(port, alice, monkeypatch, limit, status, caplog):
    if limit == "of the user":
        monkeypatch.setattr(live_module, "MAX_STREAMS", 3)
    else:
        monkeypatch.setattr(live_module.resource, "getrlimit", lambda which: (7, 7))
    connections = [ask(port, alice) for _ in range(9)]
    responses = [connection.getresponse() for connection in connections]
    assert sorted(response.status for response in responses) == [200] * 3 + [status] * 6
    refused = next(response for response in responses if response.status == status)
    assert (refused.headers["Retry-After"] is None) == (status == 429)
    assert "ERROR" not in [record.levelname for record in caplog.records]
    for connection in [*connections, *responses]:
        connection.close()
    wait_until(lambda: not feeds._open)


def test_nobody_has_a_stream(port):
    nobody = ask(port)
    response = nobody.getresponse()
    assert (response.status, json.load(response)["detail"]) == (401, "Authentication required.")
    assert_nobody_else_gets(response.headers)
    nobody.close()


def test_a_stream_that_never_begins_is_closed(monkeypatch, alice):
    """As one whose response a middleware drops."""
    opened, open_feed = list[Any](), feeds.open
    monkeypatch.setattr(feeds, "open", lambda *args: opened.append(open_feed(*args)) or opened[-1])
    monkeypatch.setattr(stream_module, "GRACE", 0.05)

    async def drop() -> None:
        client = AsyncClient()
        await client.aforce_login(alice)
        response = await client.get(reverse("notifications:stream"))
        assert response.status_code == 200
        while feeds._open:
            await asyncio.sleep(0.01)

    asyncio.run(drop())
    assert opened
    wait_until(lambda: feeds._thread is None)


def test_a_stream_whose_loop_ends_before_it_begins_is_closed(monkeypatch, alice):
    """As in a site's own test, which reads no event."""
    monkeypatch.setattr(live_module, "IDLE", 0.05)
    monkeypatch.setattr(live_module, "REREAD", 0.05)

    async def ask_only() -> None:
        client = AsyncClient()
        await client.aforce_login(alice)
        assert (await client.get(reverse("notifications:stream"))).status_code == 200

    asyncio.run(ask_only())
    wait_until(lambda: feeds._thread is None)


def assert_nobody_else_gets(headers: Any) -> None:
    """No cache shows a response to another user."""
    assert {"private", "no-cache"} <= set(headers["Cache-Control"].split(", "))
    assert headers["Vary"] == "Cookie"


def test_streams_need_asgi(client, caplog):
    """A script that gets no stream polls; a worker of WSGI would be held for as long as the page is open. A browser
    would show a status from 400 on as an error."""
    response = client.get(reverse("notifications:stream"))
    assert response.status_code == 204
    assert_nobody_else_gets(response.headers)
    assert not caplog.records
    assert client.post(reverse("notifications:stream")).status_code == 405


# ----------------------------------------------------------------- connections
@pytest.mark.usefixtures("healed")
def test_the_connection_is_young(listen, monkeypatch, alice, redis_client):
    """A demoted master that lives would keep an old one."""
    monkeypatch.setattr(live_module, "REREAD", 0.3)
    events = listen(alice)
    assert events.next_count() == 0
    seen = set()

    def is_another() -> bool:
        seen.update(client["id"] for client in redis_client.client_list(_type="pubsub"))
        return len(seen) > 2

    wait_until(is_another)
    create(alice)
    assert events.next_count() == 1


def test_redis_restarts(server, use, listen, alice):
    use(server.url)
    unread.heal()
    events = listen(alice)
    assert events.next_count() == 0
    wait_until(publishes)
    with entries(RETRY_AFTER=0):
        server.kill()
        Notification.objects.create(user=alice, title="x")
        assert events.next_count() == 1  # rows are counted
        server.start()
        wait_until(publishes)
        Notification.objects.create(user=alice, title="x")
        assert events.next_count() == 2


def test_a_cluster(use, listen, make_user):
    with servers.redis_cluster() as nodes:
        client = use(nodes[0].url, CONNECTION_FACTORY=CLUSTER)
        unread.heal()
        users = [make_user() for _ in range(10)]
        streams = [listen(user) for user in users]
        assert [events.next_count() for events in streams] == [0] * 10
        wait_until(publishes)
        Notification.objects.bulk_create(Notification(user=user, title="x") for user in users)
        assert [events.next_count() for events in streams] == [1] * 10
        for events in streams:
            events.close()
        wait_until(lambda: feeds._thread is None)
        client.redis.close()
