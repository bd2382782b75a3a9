"""What something else has written under the keys of the app counts as missing, and is replaced. Nothing ends a loop, a
page or a stream."""

import logging
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction

from notifications_counter import tasks
from notifications_counter.buffer.client import client_of
from notifications_counter.counters import Counter, unread
from notifications_counter.events import EventLog
from notifications_counter.maintenance.history import history
from notifications_counter.management.commands import flush_counters
from notifications_counter.models import Notification
from notifications_counter.monitoring.dashboard import page
from notifications_counter.timeseries import TimeSeries
from tests.support import assert_exact, assert_reads, begin_now, buffer, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture(autouse=True)
def _notes_trouble(_own_keys) -> None:
    """Trouble of another test does not keep the process from noting that of this one."""
    client_of("default").troubles._noted.clear()


TEXTS = ["x", "", "nan", "1.5", "9" * 16, b"\xff"]
NUMBERS = ["epoch", "batch", "dirty", "waiting_since", "flushing_since", "heartbeat_at", "live_until"]


@pytest.mark.parametrize("text", TEXTS, ids=repr)
@pytest.mark.parametrize("field", NUMBERS)
def test_a_state_that_cannot_be_read(few_healed, alice, redis_client, field, text):
    """It is taken for missing."""
    notify(alice)
    Notification.objects.create(user=alice, title="x")
    redis_client.hset(buffer().keys.state, field, text)
    assert_reads(alice)
    Notification.objects.create(user=alice, title="x")
    assert_reads(alice)
    call_command("flush_counters", verbosity=0)
    assert_reads(alice)
    call_command("recount_counters", verbosity=0)
    call_command("flush_counters", "--check", verbosity=0)
    assert_exact(alice)


@pytest.mark.parametrize("ready", ["999999999:{}", "x:{}", ":{}", "x", b"\xff"])
def test_a_ready_that_cannot_be_read(healed, alice, redis_client, ready):
    notify(alice)
    text = ready if isinstance(ready, bytes) else ready.format(unread.fingerprint)
    redis_client.set(buffer().keys.ready, text)
    assert_reads(alice)
    unread.heal()
    assert buffer().upkeep.status().complete
    assert_exact(alice)


@pytest.mark.parametrize("entry", ["x", "[]", "{}", '{"users": "1"}', b"\xff", '{"users": [1]}'])
def test_an_intent_that_cannot_be_read(healed, alice, redis_client, entry):
    notify(alice)
    epoch = buffer().upkeep.status().epoch
    redis_client.hset(buffer().keys.intents, "part", entry)
    unread.heal()
    status = buffer().upkeep.status()
    assert (status.epoch, status.intents, status.complete) == (epoch + 1, 0, True)
    assert_exact(alice)


def test_an_open_part_that_is_overwritten_before_its_commit(healed, alice, redis_client):
    with transaction.atomic():
        Notification.objects.create(user=alice, title="x")
        begin_now()
        for part in redis_client.hkeys(buffer().keys.intents):
            redis_client.hset(buffer().keys.intents, part, "x")
    assert_reads(alice)
    assert_exact(alice, dirty=1)


@pytest.mark.parametrize("total", ["x", "1.5", "9" * 18])
def test_a_cached_total_that_cannot_be_added_to(healed, alice, redis_client, total, caplog):
    notify(alice)
    assert_reads(alice)
    redis_client.set(buffer().keys.total(buffer().upkeep.status().ready, str(alice.pk)), total)
    if total.isdigit():
        redis_client.incrby(buffer().keys.total(buffer().upkeep.status().ready, str(alice.pk)), 2**63 - 1 - int(total))
    Notification.objects.create(user=alice, title="x")
    assert_exact(alice)
    assert not caplog.records


def test_events_that_cannot_be_read(few_healed, alice, redis_client):
    notify(alice)
    call_command("flush_counters", verbosity=0)
    good = {"counter": "unread", "checked": 1, "wrong": 0, "corrected": 0, "retried": 0}
    for bad in ("checked", "corrected", "counter"):
        history.record_event({"type": "recount", **good, bad: [None]})
        history.record_event({"type": "recount", **{name: value for name, value in good.items() if name != bad}})
    history.record_event({"type": "recount", "counter": "unread"})
    history.record_event({"type": "recount", "timestamp": 1e300, **good})
    before = len(history.latest(type="recount"))
    for field, value in [
        ("checked", "x"),
        ("timestamp", "NaN"),
        ("timestamp", '"x"'),
        ("type", b"\xff"),
        ("type", "[]"),
    ]:
        redis_client.hset(history._key("event", history.record_event({"type": "recount", **good})), field, value)
    redis_client.zadd(history._key("events"), {"x": 1e12, b"\xff": 1e12, "inf": 1e12})
    redis_client.zadd(history._key("events:recount"), {"x": 1e12, b"\xff": 1e12, "inf": 1e12})
    redis_client.sadd(history._key("types"), "", "x" * 300, b"\xff")
    assert len(history.latest(type="recount")) == before
    assert len(history.latest(1, type="recount")) == 1
    assert history.count_types(scan=True)["recount"] > before
    assert "recount" in history.count_types()
    shown = page("", "")
    assert not shown["problems"]
    assert len(shown["events"].rows) < before
    assert history.trim_events(max_length=0) > before
    assert history.count_events() == 0


def test_an_event_log_of_the_site_that_cannot_be_read(redis_client):
    log = EventLog()
    id_ = log.record_event({"type": "login"})
    redis_client.hset(log._key("event", id_), "user", "x")
    assert log.get_event(id_) is None
    assert log.latest() == log.oldest() == []


def test_time_sliced_counters_that_cannot_be_read(redis_client):
    series = TimeSeries(precisions=[60, 3600])
    series.update_counter("hits", 2)
    key, known = f"{series.base}:60:hits", f"{series.base}:known"
    [(slice_, _)] = series.get_counter("hits", 60)
    redis_client.hset(key, mapping={"x": 1, str(slice_ - 60): "x", b"\xff": 1, str(slice_ - 120): "9" * 30})
    members = ["x", "x:hits", "1e5:hits", "-5:hits", b"\xff:hits", b"3600:\xff", "3600:"]
    redis_client.zadd(known, dict.fromkeys(members, 0))
    redis_client.hset(f"{series.base}:3600:".encode() + b"\xff", slice_, 1)
    assert series.get_counter("hits", 60) == [(slice_, 2)]
    assert series.list_counters() == ["hits"]
    series.clean_counters()
    assert redis_client.hexists(key, slice_)
    assert not redis_client.hexists(key, "x")
    assert series.get_counter("hits", 60) == [(slice_, 2)]
    assert set(redis_client.zrange(known, 0, -1)) == {b"60:hits", b"3600:hits", b"3600:\xff"}


def test_where_a_recount_was_interrupted_cannot_be_read(few_healed, alice, redis_client):
    notify(alice)
    for text in ("x", "owner:", "owner:x", b"\xff", "owner:99999999999999999999"):
        redis_client.set(buffer().keys.recounted, text)
        call_command("recount_counters", verbosity=0)
    assert_exact(alice)


@pytest.mark.parametrize("text", ["x", "[]", '["x", 1]', b"\xff"])
def test_a_last_run_that_cannot_be_read(few_healed, redis_client, text):
    redis_client.set(buffer().keys.last_run, text)
    call_command("flush_counters", "--check", verbosity=0)


# ------------------------------------------------------------------------------------------------ errors of one counter
class Broken:
    """A counter that fails in a way that nobody has foreseen, while ``is_broken``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.is_broken, self.failures, heal = True, 0, Counter.heal

        def fail(counter: Counter, *args: Any, **kwargs: Any) -> Any:
            if counter is unread and self.is_broken:
                self.failures += 1
                raise ZeroDivisionError("nobody has foreseen this")
            return heal(counter, *args, **kwargs)

        monkeypatch.setattr(Counter, "heal", fail)


def test_an_error_of_a_counter_does_not_end_the_loop(few_healed, alice, monkeypatch, caplog):
    broken = Broken(monkeypatch)
    command = flush_counters.Command()
    runs: list[str] = []
    run = command.run

    def counted_run(local: Any, stop: Any, quiet: bool = False) -> bool:
        unfinished = run(local, stop, quiet)
        runs.append(local.counter.name)
        if runs.count("open_tasks") >= 2 and broken.is_broken:
            broken.is_broken = False
        elif runs.count("unread") >= 2:
            stop.ask(0, None)
        return unfinished

    command.run = counted_run
    Notification.objects.create(user=alice, title="x")
    call_command(command, "--loop", "--interval", "0", verbosity=0)
    assert broken.failures >= 2
    [failed] = [r for r in caplog.records if getattr(r, "event", "") == "run_failed"]
    assert (failed.levelno, failed.counter) == (logging.ERROR, "unread")
    assert failed.exc_info[0] is ZeroDivisionError
    assert_exact(alice)


@pytest.mark.parametrize("work", [tasks.flush, lambda: call_command("flush_counters", verbosity=0)])
def test_an_error_of_a_counter_reaches_whoever_called(few_healed, alice, monkeypatch, work):
    """And the others were flushed."""
    Broken(monkeypatch)
    worked: list[str] = []
    flush = Counter.flush
    monkeypatch.setattr(
        Counter, "flush", lambda counter, **options: worked.append(counter.name) or flush(counter, **options)
    )
    with pytest.raises(ZeroDivisionError):
        work()
    assert worked
    assert "unread" not in worked
