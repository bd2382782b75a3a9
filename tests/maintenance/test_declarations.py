"""Two releases that count by different declarations, for as long as a deployment takes, and in whichever order."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import copy
from datetime import timedelta
from enum import IntEnum
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models import BigAutoField, F, IntegerField, Q, TextField
from django.db.models.functions import Length
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.models import CounterShard, Notification
from notifications_counter.monitoring.status import look
from tests.faults.child import ROOT
from tests.support import assert_exact, assert_heals, assert_reads, buffer, entries, notify, sent, unheard

pytestmark = pytest.mark.django_db(transaction=True)


class OtherRelease:
    """A process in which only notifications of the kind "task" count."""

    def __init__(self, environment: dict[str, str]):
        command = [sys.executable, "-m", "tests.maintenance.other_release"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)
        assert self._line() == "ready"

    def _line(self) -> str:
        return self.process.stdout.readline().rstrip("\n")

    def run(self, expression: str) -> str:
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()
        return self._line()

    def count(self, user: Any) -> int:
        return int(self.run(f"unread.count({str(user.pk)!r})"))

    def create(self, user: Any, kind: str) -> None:
        self.run(f"create(user_id={str(user.pk)!r}, title='x', kind={kind!r}) and None")

    def heal(self) -> None:
        self.run("unread.heal() and None")

    def flush(self) -> None:
        self.run("unread.flush() and None")


@pytest.fixture
def start(child_environment: dict[str, str]) -> Iterator[Callable[[], OtherRelease]]:
    """A function that starts another release."""
    releases: list[OtherRelease] = []

    def start() -> OtherRelease:
        releases.append(OtherRelease(child_environment))
        return releases[-1]

    yield start
    for release in releases:
        release.process.kill()
        release.process.communicate()


def in_force() -> str:
    return CounterShard.objects.get(counter="unread").declared


def is_trusted() -> bool:
    return bool(buffer().upkeep.status().ready)


@pytest.fixture
def deployed(start: Callable[[], OtherRelease], alice: Any) -> OtherRelease:
    """The other release has counted until now: one of two notifications."""
    other = start()
    Notification.objects.create(user=alice, title="x")
    Notification.objects.create(user=alice, title="x", kind="task")
    other.heal()
    other.flush()
    assert other.count(alice) == 1
    assert in_force() != unread.fingerprint
    return other


def test_a_new_release_counts_rows_and_has_the_old_one_count_them(deployed, alice):
    assert unread.count(alice) == 2
    assert unread.counts([alice]) == {alice.pk: 2}
    # The old one does not hear of everything that the new one does.
    Notification.objects.for_user(alice).update(kind="task")
    assert deployed.count(alice) == 2
    assert_reads(alice)


def test_another_number_of_shards_in_the_same_release(deployed, alice):
    with entries(SHARDS=3):
        unread.heal()
        assert set(CounterShard.objects.filter(counter="unread").values_list("declared", flat=True)) == {
            unread.fingerprint
        }
        assert_heals(alice)


def test_a_deployment(deployed, alice, bob):
    with entries(DEPLOY_SECONDS=3600):
        unread.heal()  # the first run of the new flusher
        assert in_force() == unread.fingerprint
        deployed.create(alice, "")  # of which it tells nobody
        assert_reads(alice, bob)
        deployed.heal()
        deployed.flush()
        unread.heal()
        assert unread.flush().owners == 0
        assert in_force() == unread.fingerprint
        assert not is_trusted()
        deployed.create(bob, "task")
        deployed.create(alice, "")
        assert_reads(alice, bob)
    unread.heal()  # the time is over
    assert is_trusted()
    assert_exact(alice, bob)
    with sent() as commands:
        unread.count(alice)
    assert commands == ["MGET"]


def pass_time(seconds: int) -> None:
    """As if everything had happened so long ago."""
    CounterShard.objects.update(declared_at=F("declared_at") - timedelta(seconds=seconds))
    redis = buffer().client.redis
    if redis.hexists(buffer().keys.state, "heartbeat_at"):
        redis.hincrby(buffer().keys.state, "heartbeat_at", -seconds)
    buffer()._heartbeat_at = -math.inf


def test_the_new_release_does_not_wait_for_itself(deployed, alice):
    with entries(DEPLOY_SECONDS=60):
        assert_reads(alice)
        unread.heal()
        pass_time(61)
        assert_reads(alice)
        Notification.objects.create(user=alice, title="x")
        unread.heal()
        assert is_trusted()
    assert_exact(alice)


@pytest.mark.parametrize("act", ["reads", "writes"])
def test_the_new_release_waits_for_the_old_one(deployed, alice, act):
    with entries(DEPLOY_SECONDS=60):
        unread.heal()
        pass_time(61)
        if act == "reads":
            deployed.count(alice)
        else:
            deployed.create(alice, "task")
        unread.heal()
        assert not is_trusted()
        pass_time(61)
        unread.heal()
        assert is_trusted()
    assert_exact(alice)


def test_a_new_release_of_which_only_the_flusher_is_heard(healed, start, alice):
    """Its changes do not count by its own declaration, so that it tells nobody."""
    notify(alice)
    assert_reads(alice)
    new = start()
    new.run("setattr(options, 'DEPLOY_SECONDS', 3600)")
    new.heal()
    new.create(alice, "")
    assert_reads(alice)


def test_a_process_of_the_old_release_that_goes_on_for_too_long(deployed, alice):
    unread.heal()
    assert_exact(alice)
    deployed.create(alice, "")  # of which nobody hears
    deployed.create(alice, "task")
    assert not is_trusted()
    assert_reads(alice)
    CounterShard.objects.update(declared_at=timezone.now() - timedelta(days=1))
    with entries(DEPLOY_SECONDS=3600):
        unread.heal()
        assert not is_trusted()
    assert_heals(alice)


def test_a_batch_that_the_old_release_has_cut(deployed, alice):
    deployed.create(alice, "task")
    deployed.run("setattr(unread, 'cut', unread.buffers[0].upkeep.cut(1))")
    with entries(DEPLOY_SECONDS=3600):
        unread.heal()  # no other epoch has begun
    assert deployed.run("atomic(lock_for_batch)(unread, 0, unread.cut, 0)") == "None"
    assert_heals(alice)


def test_a_release_that_is_taken_back(deployed, alice, start):
    unread.heal()
    assert_exact(alice)
    again = start()
    again.heal()
    again.flush()
    assert in_force() != unread.fingerprint
    unread.heal()  # of the release that was taken back: it leaves the counts alone
    unread.flush()
    assert in_force() != unread.fingerprint
    assert again.count(alice) == 1
    assert_reads(alice)


def test_a_recount_by_another_release_changes_nothing(deployed, alice):
    unread.heal()
    deployed.run(f"unread.recount([{str(alice.pk)!r}]) and None")
    assert_heals(alice)


def test_a_recount_of_everyone_by_another_release_is_left_to_the_flusher(healed, alice, monkeypatch):
    unheard(Notification.objects.create, user=alice, title="x")
    with monkeypatch.context() as other:
        other.setattr(buffer(), "fingerprint", "another")
        assert unread.recount().checked == 0
    assert not is_trusted()
    assert buffer().upkeep.status().dirty == 0
    assert_heals(alice)


def test_a_recount_of_everyone_before_the_first_epoch(alice, capsys):
    unheard(Notification.objects.create, user=alice, title="x")
    with entries(DEPLOY_SECONDS=3600):
        call_command("recount_counters")
        assert "Rows are counted until no process of another release" in capsys.readouterr().out
        assert buffer().upkeep.status().dirty == 0
    assert_heals(alice)


def test_a_new_counter_waits_for_those_that_do_not_know_it(alice):
    with entries(DEPLOY_SECONDS=3600):
        unread.heal()
        assert not is_trusted()
        notify(alice)
        assert_reads(alice)
        assert unread.status()[0].is_incomplete
        (problem,) = look([unread]).problems()
        assert problem.kind == "recovering"
        assert "no process of another release has been heard of for DEPLOY_SECONDS" in problem.text
    assert_heals(alice)
    assert is_trusted()


def test_a_test_database_does_not_wait_and_nothing_says_that_it_does(deployed, alice, caplog, settings):
    own = settings.NOTIFICATIONS_COUNTER
    settings.NOTIFICATIONS_COUNTER = {name: own[name] for name in own if name != "DEPLOY_SECONDS"}
    assert unread.count(alice) == 2  # of which Redis hears
    assert "or its declaration has changed" in look([unread]).problems()[0].text
    unread.heal()
    assert is_trusted()
    assert [record.wait for record in caplog.records if getattr(record, "event", "") == "declared"] == [0]


def test_a_recovery_of_the_same_release_does_not_wait(healed):
    CounterShard.objects.update(declared_at=timezone.now() - timedelta(days=1))
    with entries(DEPLOY_SECONDS=3600):
        unread.invalidate()
        unread.heal()
        assert is_trusted()


def fingerprint(condition: Q = unread.q, **changed: Any) -> str:
    """Of a counter like `unread`, but for what is changed."""
    other = copy(unread)
    for name in (
        "condition",
        "columns",
        "source",
        "totals",
        "owner_fields",
        "total_fields",
        "key_fields",
        "fingerprint",
    ):
        vars(other).pop(name, None)
    vars(other).update(q=condition, **changed)
    return other.fingerprint


def status(value: int) -> IntEnum:
    """An owner key that keeps its name while its value changes."""
    return IntEnum("Status", {"OPEN": value}).OPEN


def test_what_a_fingerprint_is_made_of():
    assert fingerprint() == unread.fingerprint
    others = [
        fingerprint(Q()),
        fingerprint(~unread.q),
        fingerprint(Q(kind=F("title"))),
        fingerprint(Q(kind=Length("title"))),
        fingerprint(Q(pk=status(1))),
        fingerprint(Q(pk=status(2))),
        fingerprint(~Q(Q(pk__in=[status(1)]))),
        fingerprint(~Q(Q(pk__in=[status(2)]))),
        fingerprint(key_fields=(TextField(),)),
        fingerprint(sum="id"),
        fingerprint(field="flushed_batch"),
        fingerprint(batch_field="unread_count"),
        fingerprint(totals_label="tasks.ProjectTaskCount", field="open_count"),
        fingerprint(Q(), source_label="tasks.Transfer", owner="sender"),
        fingerprint(Q(), source_label="tasks.Transfer", owner="receiver"),
    ]
    assert len({fingerprint(), *others}) == 1 + len(others)
    assert len({fingerprint(key_fields=(kind(),)) for kind in (IntegerField, BigAutoField)}) == 1


@pytest.mark.parametrize("value", [{"a", "b", "c", "d"}, object()], ids=["a set", "an object that Django cannot write"])
def test_each_process_has_the_same_fingerprint(value: Any, start: Callable[[], OtherRelease]):
    """Neither the order of a set nor an address in memory is part of it."""
    written = repr(value) if isinstance(value, set) else "object()"
    release = start()
    release.run(f"setattr(unread, 'q', Q(kind={written}))")
    assert release.run("unread.fingerprint") == repr(fingerprint(Q(kind=value)))
