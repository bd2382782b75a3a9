"""Two releases that count by different declarations, for as long as a deployment takes, and in whichever order."""

from collections.abc import Iterator
from copy import copy
from datetime import timedelta
from enum import IntEnum
from functools import cached_property
from typing import Any
from unittest import mock

import pytest
from django.core.management import CommandError, call_command
from django.db.models import (
    BigAutoField,
    DecimalField,
    F,
    Field,
    GeneratedField,
    IntegerField,
    Model,
    Q,
    TextField,
    Value,
)
from django.db.models.functions import Length
from django.test.utils import isolate_apps
from django.utils import timezone

from notifications_counter.counters import Counter, counters_of_notifications, unread
from notifications_counter.databases.identity import databases
from notifications_counter.exceptions import ConfigurationError
from notifications_counter.models import CounterState, DoubtRequest, Notification
from notifications_counter.monitoring import dashboard
from notifications_counter.monitoring.status import read_counter
from notifications_counter.testing import isolated_counters
from notifications_counter.upkeep import switch
from notifications_counter.upkeep.findings import Result
from notifications_counter.upkeep.phases import Phase
from tests.support import (
    assert_exact,
    assert_reads,
    be_a_new_process,
    entries,
    is_ready,
    notify,
    sent,
    status_of,
    stored,
    unheard,
)

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600


def release(condition: Q = unread.q, **changed: Any) -> Counter:
    """A counter like `unread`, but for what is changed."""
    one = copy(unread)
    for name in list(vars(one)):
        if isinstance(getattr(type(one), name, None), cached_property):
            delattr(one, name)
    vars(one).update(q=condition, **changed)
    return one


def create(user: Any, kind: str = "") -> None:
    Notification.objects.create(user=user, title="x", kind=kind)


@pytest.fixture(autouse=True)
def _starts(db: Any) -> None:
    be_a_new_process()


def in_force() -> set[str]:
    return set(CounterState.objects.filter(counter="unread").values_list("fingerprint", flat=True))


# -------------------------------------------------------------------------------------------------------- declarations
def test_a_deployment(alice, bob, caplog):
    """Until now, a release has counted one of two notifications. Processes of both work for a while."""
    old = release(Q(read_at=None, kind="task"))
    create(alice)
    create(alice, "task")
    old.heal()
    old.flush()
    assert old.count(alice) == stored(alice) == 1
    assert in_force() == {old.fingerprint} != {unread.fingerprint}
    assert_reads(alice)  # by a process that comes before its flusher
    create(alice)
    with entries(DEPLOY_SECONDS=HOUR):
        unread.heal()  # the first run of the new flusher
        assert in_force() == {unread.fingerprint}
        assert [record.wait for record in caplog.records if getattr(record, "event", "") == "declared"] == [HOUR]
        with mock.patch.object(switch, "_in_force", set()):  # in an old process of the site, somebody flushes
            assert old.flush() == Result()
            with pytest.raises(ConfigurationError, match="Restart this process"):
                old.recount()
        unread.invalidate()
        assert not is_ready()
        unheard(create, bob)  # by an old process, which tells nobody
        request = DoubtRequest.objects.create(counter="unread", owner_key=str(alice.pk))
        for _ in range(2):
            assert_reads(alice, bob)
            old.heal()
            assert DoubtRequest.objects.filter(pk=request.pk).exists()  # nobody has been told
            old.flush()
            with pytest.raises(ConfigurationError, match="Restart this process"):
                old.invalidate()
            unread.heal()
            assert unread.flush() == Result()
            assert not is_ready()
            (problem,) = status_of(unread).warnings
            assert (problem.kind, "(`DEPLOY_SECONDS`)" in problem.text) == ("deploying", True)
        assert [record.levelname for record in caplog.records if getattr(record, "event", "") == "replaced"] == [
            "ERROR"
        ]
        CounterState.objects.update(declared_at=timezone.now() - timedelta(seconds=HOUR))
        unread.heal()
    assert is_ready()
    unread.flush()
    assert_exact(alice, bob)
    with sent() as commands:
        unread.count(alice)
    assert commands == ["MGET"]
    with entries(DEPLOY_SECONDS=HOUR):  # a generation of the same release does not wait
        unread.invalidate()
        unread.heal()
        assert is_ready()


@pytest.mark.parametrize("learns_by", ["reading", "healing"])
def test_a_process_from_before_the_first_run(alice, redis_client, learns_by):
    """It knows by now that a flusher has served the counter. So an empty Redis is a new one."""
    databases.clear()
    unread._buffers.clear()
    create(alice)
    if learns_by == "healing":
        unread.heal()
    else:
        release().heal()  # by another process
        assert_reads(alice)
    redis_client.flushdb()
    create(alice)
    assert DoubtRequest.objects.exists()
    assert_reads(alice)


def pass_time(*fields: str) -> None:
    """An hour has passed since what these fields of the counter's row tell."""
    CounterState.objects.update(**{field: F(field) - timedelta(seconds=HOUR) for field in fields})


def run(counter: Counter) -> None:
    """A flusher of this release, which cron starts: a new process."""
    be_a_new_process()
    counter.heal()
    counter.flush()


@pytest.fixture
def old(alice: Any) -> Iterator[Counter]:
    """The release that has been in force until now."""
    counter = release(Q(read_at=None, kind="task"))
    create(alice)
    create(alice, "task")
    run(counter)
    with entries(DEPLOY_SECONDS=HOUR):
        yield counter


def test_flushers_of_two_releases_that_take_turns(old, alice, caplog):
    """One of the old release has been forgotten. Neither it nor a recount takes its declaration back."""
    for _ in range(3):
        run(unread)
        run(old)
        with pytest.raises(ConfigurationError, match="Restart this process"):
            old.invalidate()
        assert in_force() == {unread.fingerprint}
        assert_reads(alice)
    pass_time("declared_at")
    run(unread)
    assert is_ready()
    pass_time("healed_at")  # no new flusher was seen to run, but it runs
    run(unread)
    run(old)
    assert in_force() == {unread.fingerprint}
    assert_exact(alice)
    told = [(record.event, record.levelname) for record in caplog.records if record.event in ("declared", "replaced")]
    assert told == [("declared", "WARNING"), *[("replaced", "ERROR")] * 4]


def test_a_flusher_that_is_forgotten_is_red(old, alice):
    """The site has the new release, and its flusher goes on with the old one. The old release has no complaint."""
    be_a_new_process()
    assert_reads(alice)
    (problem,) = status_of(unread).problems
    assert (problem.kind, "newest release" in problem.text) == ("replaced", True)
    with pytest.raises(CommandError, match="unread: Flushers serve another declaration"):
        call_command("flush_counters", "--check")
    assert "another declaration" in dashboard.page("minute")["lead"].sentence
    assert status_of(old).problems == ()
    run(unread)
    assert [problem.kind for problem in status_of(unread).warnings] == ["deploying"]
    assert [problem.kind for problem in status_of(old).problems] == ["replaced"]


def test_a_release_that_is_rolled_back(old, alice, caplog):
    """Its flushers are gone. One that waits for that, in a loop, says so once."""
    run(unread)
    be_a_new_process()
    caplog.clear()
    for _ in range(2):
        old.heal()
        assert in_force() == {unread.fingerprint}
    pass_time("healed_at")
    old.heal()
    assert in_force() == {old.fingerprint}
    assert [record.event for record in caplog.records] == ["replaced", "declared"]
    run(unread)  # one that is forgotten
    assert in_force() == {old.fingerprint}
    pass_time("declared_at")
    run(old)
    assert_exact(alice, counter=old)
    pass_time("healed_at")
    run(unread)  # it is deployed again
    run(old)
    assert in_force() == {unread.fingerprint}


@pytest.mark.once
def test_migrate_declares_the_counters_whose_tables_it_makes(alice):
    """The first flush need not wait. Tables of other apps were there before."""
    for _ in range(2):  # the second time, they are missing before and after
        call_command("migrate", "notifications_counter", "zero", verbosity=0)
    call_command("migrate", verbosity=0)
    assert in_force() == {unread.fingerprint}
    assert {row.counter for row in CounterState.objects.all()} == {each.name for each in counters_of_notifications()}
    be_a_new_process()
    with entries(DEPLOY_SECONDS=HOUR):
        create(alice)
        unread.flush()
        assert stored(alice) == 1
    CounterState.objects.all().delete()
    call_command("migrate", verbosity=0)
    assert not CounterState.objects.exists()  # it has made nothing


@pytest.mark.parametrize("by", ["this release", "another one"])
def test_a_table_that_migrate_has_just_made(alice, by):
    """Nobody writes there by another declaration, unless another one follows before it has ever been flushed."""
    fingerprint = unread.fingerprint if by == "this release" else "another"
    CounterState.objects.create(counter="unread", fingerprint=fingerprint, declared_at=None)
    be_a_new_process()
    with entries(DEPLOY_SECONDS=HOUR):
        create(alice)
        assert not DoubtRequest.objects.exists()
        assert read_counter(unread).phase == (Phase.NEW if by == "this release" else Phase.REPLACED)
        unread.flush()
        assert is_ready() == bool(stored(alice)) == (by == "this release")
    assert_reads(alice)


def test_a_forgotten_flusher_does_not_take_over_when_counting_is_on_again(old):
    """While it was off, nobody noted that the other one lives."""
    run(unread)
    switch.switch_off(unread)
    pass_time("healed_at")
    switch.switch_on(unread)
    be_a_new_process()
    run(old)
    assert in_force() == {unread.fingerprint}


def test_a_third_release(old):
    """A flusher of the first is forgotten."""
    for counter in (unread, old, third := release(Q(kind="task")), old, unread):
        run(counter)
    assert in_force() == {third.fingerprint}


def test_a_process_with_another_redis_tells_the_database(alice):
    """It starts right after the first flusher, only writes, and its settings name an empty Redis."""
    with entries(DEPLOY_SECONDS=HOUR):
        unread.heal()
    databases.clear()
    create(alice)
    assert not DoubtRequest.objects.exists()
    with entries(KEY_PREFIX="another"):
        create(alice)
    assert DoubtRequest.objects.get().owner_key == str(alice.pk)


def test_another_key_prefix_is_another_declaration(healed, alice, caplog):
    """Whoever still uses the old one tells the flusher nothing, and the old flusher stores nothing."""
    notify(alice)
    with isolated_counters(DEPLOY_SECONDS=HOUR):
        unread.heal()
        assert [record.wait for record in caplog.records if getattr(record, "event", "") == "declared"] == [HOUR]
        assert_reads(alice)
        assert not is_ready()
    create(alice)
    assert (unread.flush(), stored(alice)) == (Result(), 3)
    with isolated_counters():
        CounterState.objects.update(fingerprint=unread.fingerprint)
        unread.heal()
        unread.flush()
        assert_exact(alice)


@pytest.mark.parametrize("debug", [True, False])
def test_only_development_does_not_wait_by_default(alice, settings, debug):
    given = settings.NOTIFICATIONS_COUNTER
    settings.DEBUG = debug
    settings.NOTIFICATIONS_COUNTER = {name: value for name, value in given.items() if name != "DEPLOY_SECONDS"}
    unread.heal()
    assert is_ready() is debug


@pytest.mark.parametrize("is_new", [True, False], ids=["a new counter", "a changed one"])
def test_two_flushers_that_start_at_once(alice, is_new, caplog, monkeypatch):
    """One puts the declaration in force, and begins a generation, before the other is about to."""
    caplog.set_level("INFO", "notifications_counter")
    if not is_new:
        unread.heal()
        CounterState.objects.update(fingerprint="another")
        be_a_new_process()
        caplog.clear()
    declare = switch.declare

    def be_second(*args: Any) -> Any:
        monkeypatch.undo()
        unread.heal()
        notify(alice)
        return declare(*args)

    monkeypatch.setattr(switch, "declare", be_second)
    unread.heal()
    assert [record.event for record in caplog.records].count("declared") == 1
    assert is_ready()
    unread.flush()
    assert_exact(alice)


# -------------------------------------------------------------------------------------------------------- fingerprints
def status(value: int) -> IntEnum:
    """An owner key that keeps its name while its value changes."""
    return IntEnum("Status", {"OPEN": value}).OPEN


def test_what_a_fingerprint_is_made_of():
    def fingerprint(*condition: Q, **changed: Any) -> str:
        return release(*condition, **changed).fingerprint

    assert fingerprint() == unread.fingerprint
    others = [
        fingerprint(Q()),
        fingerprint(~unread.q),
        fingerprint(Q(kind=Length("title"))),
        fingerprint(Q(pk=1)),
        fingerprint(Q(pk=1), sum="id"),
        fingerprint(~Q(Q(pk__in=[2]))),
        fingerprint(pk_fields=(TextField(),)),
        fingerprint(sum="id"),
        fingerprint(field="unseen_count"),
        fingerprint(totals_label="tasks.ProjectTaskCount", field="open_count"),
        fingerprint(Q(), source_label="tasks.Transfer", owner="sender"),
        fingerprint(Q(), source_label="tasks.Transfer", owner="receiver"),
    ]
    assert len({fingerprint(), *others}) == 1 + len(others)
    assert len({fingerprint(pk_fields=(kind(),)) for kind in (IntegerField, BigAutoField)}) == 1
    assert fingerprint(Q(pk=status(1))) == fingerprint(Q(pk=1))
    assert fingerprint(~Q(Q(pk__in=[status(2)]))) == fingerprint(~Q(Q(pk__in=[2])))


@isolate_apps("tests.tasks")
def test_a_fingerprint_knows_what_decides_the_values_of_columns():
    class Row(Model):
        number = IntegerField()

        class Meta:
            app_label = "tasks"

    def fingerprint(field: Field) -> str:
        field.model = Row
        field.set_attributes_from_name("column")
        return release(columns=(field,)).fingerprint

    def computed(expression: Any) -> GeneratedField:
        return GeneratedField(expression=expression, output_field=IntegerField(), db_persist=True)

    fields = [
        IntegerField(),
        IntegerField(null=True),
        DecimalField(max_digits=5, decimal_places=2),
        DecimalField(max_digits=5, decimal_places=1),
        TextField(),
        TextField(db_collation="C"),
        computed(F("number")),
        computed(F("number") + 1),
    ]
    assert len(set(map(fingerprint, fields))) == len(fields)
    before = fingerprint(computed(F("number")))
    Row._meta.get_field("number").null = True
    assert fingerprint(computed(F("number"))) != before


def test_a_fingerprint_is_the_same_in_every_process():
    """Also of an expression that Django cannot serialize, whose text has the address of an object."""
    first, second = (release(Q(kind=Value(value))) for value in [object(), object()])
    assert first.fingerprint == second.fingerprint != release(~second.q).fingerprint


def test_a_flusher_that_starts_while_counting_is_off_is_not_replaced(alice):
    """Counting is switched on by a process of the old release."""
    old = release(Q(read_at=None, kind="task"))
    with mock.patch.object(switch, "_in_force", set()):
        old.heal()
    switch.switch_off(old)
    unread.heal()
    switch.switch_on(old)
    unread.heal()
    assert in_force() == {unread.fingerprint}
