"""Several calls in one packet: a write waits once, and each call has an outcome of its own."""

import socket
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
import redis
from django.db import transaction

import servers
from notifications_counter.buffer import Buffer
from notifications_counter.buffer.client import client_of
from notifications_counter.buffer.commands import Get, owners_as_json, pack_command
from notifications_counter.buffer.pipeline import Pipeline, pipelines_for
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import RecountRequest
from servers.relay import Relay
from tests.support import assert_exact, assert_heals, assert_reads, buffer, entries, sent
from tests.tasks.counters import open_issues, urgent_issues
from tests.tasks.models import Issue, Project

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

BOTH = (open_issues, urgent_issues)


class Wire(Relay):
    """Sees what is sent in one go. It can be cut after some replies."""

    def __init__(self, server: servers.Server):
        self.seen: list[tuple[bool, bytes]] = []  # whether it is a reply, and what it is
        self.replies_left = -1  # before it is cut; -1: it is not
        super().__init__(server)

    def pass_on(self, data: bytes, is_reply: bool, to: socket.socket) -> bool:
        self.seen.append((is_reply, data))
        if is_reply and self.replies_left >= 0:
            to.sendall(b"".join(data.splitlines(keepends=True)[: self.replies_left]))
            return False
        return super().pass_on(data, is_reply, to)

    def packets(self) -> list[bytes]:
        """What was sent before each wait for replies. Then it starts from the beginning."""
        seen, self.seen = self.seen, []
        runs = [
            (is_reply, b"".join(data for _, data in run)) for is_reply, run in groupby(seen, key=lambda one: one[0])
        ]
        return [data for is_reply, data in runs if not is_reply]


@pytest.fixture
def wire(use, server) -> Iterator[Wire]:
    wire = Wire(server)
    use(wire.url)
    with entries(RETRY_AFTER=0):
        yield wire
    wire.socket.close()


@pytest.fixture
def house(wire) -> Any:
    """A project whose counts are cached."""
    house = Project.objects.create()
    for counter in BOTH:
        counter.heal()
        assert counter.count(house) == 0
    Issue.objects.create(project=house, urgent=True)  # the server knows the scripts
    wire.packets()
    return house


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_a_write_waits_once(house, wire, in_a_transaction):
    if in_a_transaction:
        with transaction.atomic():
            Issue.objects.create(project=house, urgent=True)
    else:
        Issue.objects.create(project=house, urgent=True)
    with sent() as commands:
        assert open_issues.count(house) == urgent_issues.count(house) == 2
    assert commands == ["MGET"] * 2
    announced, *following = wire.packets()
    assert [announced.count(b"EVALSHA"), b"".join(following).count(b"EVALSHA")] == [2, 2]
    assert b"".join(following).count(b"MGET") == 2
    for counter in BOTH:
        assert_exact(house, counter=counter)


def test_a_packet_has_at_most_1000_users(house, monkeypatch):
    projects = Project.objects.bulk_create(Project() for _ in range(600))
    packets, send = [], Pipeline.send

    def noting(self: Pipeline, urgent: bool = False) -> None:
        packets.append(len(self.calls))
        send(self, urgent)

    monkeypatch.setattr(Pipeline, "send", noting)
    Issue.objects.bulk_create(Issue(project=project, urgent=True) for project in projects)
    assert packets == [1, 1, 1, 1]
    Issue.objects.filter(project__in=projects[:400]).update(closed=True)
    assert packets[4:] == [2, 2]
    for counter in BOTH:
        assert_exact(*projects, counter=counter)


def test_a_server_that_has_forgotten_the_scripts(house, wire):
    with redis.Redis.from_url(wire.server.url) as client:
        client.script_flush()
    Issue.objects.create(project=house, urgent=True)
    assert_reads(house, counter=open_issues)  # whoever uses the connection next sends the confirmation again
    assert not RecountRequest.objects.exists()
    for counter in BOTH:
        assert_exact(house, counter=counter)


@pytest.mark.parametrize("replies", [0, 1])
def test_a_connection_that_is_lost_before_all_have_begun(house, wire, replies):
    """The row is written again, in a transaction with a request for those without a reply."""
    wire.replies_left = replies
    Issue.objects.create(project=house, urgent=True)
    wire.replies_left = -1
    assert Issue.objects.count() == 2
    assert RecountRequest.objects.filter(counter="urgent_issues").exists()
    for counter in BOTH:
        assert_heals(house, counter=counter)


@pytest.mark.parametrize("replies", [0, 1])
def test_a_connection_that_is_lost_before_all_have_confirmed(house, wire, replies, monkeypatch):
    """Whoever uses it next notices."""
    calls_of = Buffer.confirm_call

    def cut_first(self: Buffer, *args: Any) -> Any:
        wire.replies_left = replies
        return calls_of(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Buffer, "confirm_call", cut_first)
        with transaction.atomic():
            Issue.objects.create(project=house, urgent=True)
    assert not RecountRequest.objects.exists()
    assert_reads(house, counter=open_issues)
    wire.replies_left = -1
    assert set(RecountRequest.objects.values_list("counter", flat=True)) == {"open_issues", "urgent_issues"}
    for counter in BOTH:
        assert_heals(house, counter=counter)
        assert_reads(house, counter=counter)


def test_each_call_has_its_own_outcome(house, wire):
    keys = buffer(open_issues).keys
    with redis.Redis.from_url(wire.server.url) as client:
        client.delete(keys.intents)
        client.set(keys.intents, "no hash")
    calls = [buffer(counter).announce_call("part", owners_as_json([str(house.pk)])) for counter in BOTH]
    (pipeline,) = pipelines_for(client_of("default"), calls, BOTH)
    pipeline.send()
    outcomes = dict(zip(pipeline.subjects, pipeline.outcomes(), strict=True))
    assert outcomes[urgent_issues] == 1
    assert client_of("default").breaker.down_since is None
    assert isinstance(outcomes[open_issues], BufferUnavailable)
    assert "WRONGTYPE" in str(outcomes[open_issues])


def test_a_script_call_is_packed_like_any_other_command(house):
    for owners in (["7"], ["é", "7"]):
        call = buffer(open_issues).announce_call("part", owners_as_json(owners))
        whole = ("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)
        assert call.packed == pack_command(whole)


def test_a_get_is_packed_like_any_other_command():
    ends = ["7", "-7", "12", "é", "x" * 40, "", "8"]
    packed = Get("{ä}:ready", "{ä}:total:", [end.encode() for end in ends]).packed
    assert packed == pack_command(("MGET", "{ä}:ready", *("{ä}:total:" + end for end in ends)))
