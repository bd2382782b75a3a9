"""Two counters store their totals in the same rows, each with a batch column of its own."""

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from notifications_counter.buffer import Buffer
from notifications_counter.buffer.types import Cut
from notifications_counter.buffer.upkeep import BATCHES
from notifications_counter.maintenance.flush import Flusher
from notifications_counter.maintenance.orphans import remove_orphans
from notifications_counter.maintenance.recount import Recounter
from notifications_counter.maintenance.shard_rows import lock_for_batch
from notifications_counter.reader import Reader
from notifications_counter.sql import dialect
from notifications_counter.sql.target import Chunk, Target
from notifications_counter.testing import isolated_counters
from tests.support import OtherConnection, assert_exact, assert_heals, assert_reads
from tests.tasks.counters import open_issues, urgent_issues
from tests.tasks.models import Issue, Project, ProjectIssueCount

pytestmark = pytest.mark.django_db(transaction=True)

BOTH = (open_issues, urgent_issues)


@pytest.fixture
def healed() -> None:
    for counter in BOTH:
        counter.heal()


@pytest.fixture
def house(healed) -> Project:
    """A project whose counts are flushed: both are 1."""
    house = Project.objects.create()
    Issue.objects.create(project=house, urgent=True)
    flush_both()
    return house


def flush_both() -> None:
    for counter in BOTH:
        counter.flush()


def totals(key: Any) -> tuple[int, int] | None:
    return ProjectIssueCount.objects.filter(pk=key).values_list("open_count", "urgent_count").first()


# ------------------------------------------------------------------------------------------------------------ flushing
@pytest.mark.parametrize("first", BOTH, ids=lambda counter: counter.name)
def test_each_counter_flushes_its_own_batches(healed, first):
    house = Project.objects.create()
    for _ in range(3):
        Issue.objects.create(project=house, urgent=True)
        first.flush()
    Issue.objects.create(project=house)
    flush_both()
    assert totals(house.pk) == (4, 3)
    for counter in BOTH:
        assert_exact(house, counter=counter)


def test_a_new_row_has_the_defaults_of_the_other_fields():
    apply = dialect(connection.vendor).apply
    house, garden = Project.objects.create(), Project.objects.create()
    before = timezone.now()
    apply(Target(urgent_issues, connection), BATCHES + 1, Chunk([[house.pk]], [2]))
    ProjectIssueCount.objects.filter(pk=house.pk).update(note="kept")
    apply(Target(urgent_issues, connection), BATCHES + 2, Chunk([[house.pk, garden.pk]], [2, 5]))
    kept, new = (ProjectIssueCount.objects.get(pk=key) for key in (house.pk, garden.pk))
    assert (kept.urgent_count, kept.note) == (4, "kept")
    assert (new.open_count, new.flushed_batch) == (0, 0)
    assert (new.urgent_count, new.urgent_batch) == (5, BATCHES + 2)
    assert (new.note, new.empty, new.rate, new.options, new.muted) == ("100% new", "", Decimal("1.50"), {}, True)
    assert (new.level, new.campaign) == (3, None)
    assert isinstance(new.token, UUID)
    assert new.since >= before


@pytest.mark.skipif(connection.vendor == "sqlite", reason="One transaction at a time may write.")
def test_flushers_of_both_take_turns(healed):
    """Otherwise each could wait for rows that the other has locked."""
    cut = Cut(BATCHES + 1, 1, "")

    def accept() -> bool:
        with connection.cursor() as cursor:
            sql = "lock_timeout = '50ms'" if connection.vendor == "postgresql" else "innodb_lock_wait_timeout = 1"
            cursor.execute(f"SET {sql}")
        with transaction.atomic():
            return lock_for_batch(urgent_issues, 0, cut, 0) is not None

    with OtherConnection() as other:
        with transaction.atomic():
            assert lock_for_batch(open_issues, 0, cut, 0)
            with pytest.raises(OperationalError):
                other.run(accept)
        assert other.run(accept)


@pytest.mark.parametrize(
    ("fields", "doubtful"),
    [
        ({"open_count": 9}, {open_issues}),
        ({"flushed_batch": 2 * BATCHES}, {open_issues}),
        ({"urgent_count": 9}, {urgent_issues}),
        ({"urgent_batch": 2 * BATCHES}, {urgent_issues}),
        ({"note": "x"}, set()),
    ],
    ids=str,
)
def test_a_total_that_somebody_writes_is_recounted(house, fields, doubtful):
    ProjectIssueCount.objects.filter(pk=house.pk).update(**fields)
    assert {counter for counter in BOTH if counter.status()[0].status.dirty} == doubtful
    assert_reads(house, counter=open_issues)
    assert_reads(house, counter=urgent_issues)


# ------------------------------------------------------------------------------------------------------------ removing
@pytest.fixture
def gone(house) -> Any:
    """The key of a project that is gone: both totals are zero."""
    key = house.pk
    house.delete()
    flush_both()
    assert totals(key) == (0, 0)
    return key


@pytest.mark.parametrize("counter", BOTH, ids=lambda counter: counter.name)
def test_a_row_whose_totals_are_zero_is_removed(gone, counter):
    assert remove_orphans(counter) == 1
    assert totals(gone) is None


@pytest.mark.parametrize("field", ["open_count", "urgent_count"])
@pytest.mark.parametrize("counter", BOTH, ids=lambda counter: counter.name)
def test_a_row_stays_while_another_total_is_not_zero(gone, counter, field):
    ProjectIssueCount.objects.filter(pk=gone).update(**{field: 1})
    for each in BOTH:
        each.buffers[0].client.call("", "DEL", each.buffers[0].keys.dirty)  # the update has sent it to a recount
    assert remove_orphans(counter) == 0


@pytest.mark.parametrize("other", BOTH, ids=lambda counter: counter.name)
def test_a_row_stays_while_something_waits_for_another_counter(gone, other):
    other.buffers[0].mark_dirty([str(gone)])
    for counter in BOTH:
        assert remove_orphans(counter) == 0


@pytest.mark.parametrize("other", BOTH, ids=lambda counter: counter.name)
def test_a_row_stays_while_another_counter_is_in_another_epoch(gone, other):
    other.invalidate()
    other.buffers[0].upkeep.recover(9, "server")
    for counter in BOTH:
        assert remove_orphans(counter) == 0


@pytest.mark.parametrize("other", BOTH, ids=lambda counter: counter.name)
def test_a_row_stays_that_has_a_later_batch_of_another_counter(gone, other, monkeypatch):
    look = Buffer.end_leases

    def look_and_apply(buffer: Buffer, *args: Any, **kwargs: Any) -> Any:
        seen = look(buffer, *args, **kwargs)
        dialect(connection.vendor).apply(Target(other, connection), 2 * BATCHES, Chunk([[gone]], [0]))
        return seen

    monkeypatch.setattr(Buffer, "end_leases", look_and_apply)
    for counter in BOTH:
        assert remove_orphans(counter) == 0


@pytest.mark.parametrize("counter", BOTH, ids=lambda counter: counter.name)
@pytest.mark.parametrize("late", BOTH, ids=lambda counter: counter.name)
def test_a_flusher_that_wakes_up_late_does_not_bring_a_removed_row_back(house, counter, late):
    key = house.pk
    house.delete()
    cut = late.buffers[0].upkeep.cut(1)
    flusher = Flusher(late, 100)
    (part,) = flusher._chunks(late.buffers[0], cut)
    flush_both()
    assert remove_orphans(counter) == 1
    assert flusher._apply(0, cut, part) is None
    assert totals(key) is None


@pytest.mark.parametrize("counter", BOTH, ids=lambda counter: counter.name)
@pytest.mark.parametrize("recounted", BOTH, ids=lambda counter: counter.name)
def test_a_removal_stops_a_recount_of_any_counter(house, counter, recounted):
    """The recount has seen a batch under way and counted no rows. The total without that batch is 0, and gone."""
    key = house.pk
    house.delete()
    recounted.buffers[0].upkeep.cut(1)

    class Slow(Reader):
        def stored_totals(self, keys: Any) -> Any:
            flush_both()
            assert remove_orphans(counter) == 1
            return super().stored_totals(keys)

    recounter = Recounter(recounted)
    recounter.reader = Slow(recounted)
    look = recounter._look(recounted.buffers[0], {str(key): key})
    active = recounter._fix(look, recounter._counts(look.keys))
    assert active == {str(key): key}
    assert_exact(key, counter=recounted)


# ----------------------------------------------------------------------------------------------------------- histories
number = st.integers(0, 2)
flag = st.booleans()
some = st.sampled_from(BOTH)
steps = st.one_of(
    st.tuples(st.just("create"), number, flag, flag),
    st.tuples(st.just("close"), number, flag),
    st.tuples(st.just("save"), st.integers(0, 20), number, flag, flag),
    st.tuples(st.just("undo"), number),
    st.tuples(st.just("leave"), number),
    st.tuples(st.just("flush"), some),
    st.tuples(st.just("cut"), some),
    st.tuples(st.just("wake"), some),
    st.tuples(st.just("recount"), some),
    st.tuples(st.just("remove"), some),
    st.tuples(st.just("write"), number, st.integers(-1, 1)),
)


class History:
    """What happens to three projects and the totals of their issues."""

    def __init__(self) -> None:
        self.keys = [Project.objects.create().pk for _ in range(3)]
        self.late: dict[Any, Any] = {}

    def create(self, project: int, urgent: bool, closed: bool) -> None:
        self.come(project)
        Issue.objects.create(project_id=self.keys[project], urgent=urgent, closed=closed)

    def close(self, project: int, urgent: bool) -> None:
        Issue.objects.filter(project=self.keys[project], urgent=urgent).update(closed=True)

    def save(self, which: int, project: int, urgent: bool, closed: bool) -> None:
        self.come(project)
        for issue in Issue.objects.order_by("pk")[which : which + 1]:
            issue.project_id, issue.urgent, issue.closed = self.keys[project], urgent, closed
            issue.save()

    def undo(self, project: int) -> None:
        with transaction.atomic():
            Issue.objects.filter(project=self.keys[project]).update(urgent=True, closed=False)
            transaction.set_rollback(True)

    def come(self, project: int) -> None:
        Project.objects.get_or_create(pk=self.keys[project])

    def leave(self, project: int) -> None:
        Project.objects.filter(pk=self.keys[project]).delete()

    def flush(self, counter: Any) -> None:
        counter.flush()

    def cut(self, counter: Any) -> None:
        """A flusher stops before it applies a batch."""
        (buffer,) = counter.buffers
        flusher = Flusher(counter, 100)
        if cut := buffer.upkeep.cut(buffer.upkeep.status().epoch):
            self.late[counter] = flusher, cut, list(flusher._chunks(buffer, cut))

    def wake(self, counter: Any) -> None:
        flusher, cut, chunks = self.late.pop(counter, (None, None, ()))
        for part in chunks:
            flusher._apply(0, cut, part)

    def recount(self, counter: Any) -> None:
        assert counter.recount().wrong == 0

    def remove(self, counter: Any) -> None:
        remove_orphans(counter)

    def write(self, project: int, wrong: int) -> None:
        """Somebody else writes a total of one counter, and the rows stand by the other."""
        ProjectIssueCount.objects.filter(pk=self.keys[project]).update(urgent_count=wrong)
        urgent_issues.heal()


@pytest.mark.slow
@settings(max_examples=25, deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(steps, max_size=25))
def test_any_history_of_two_counters(db, steps):
    with isolated_counters(HEAL_AFTER=0):
        for counter in BOTH:
            counter.heal()
        history = History()
        try:
            for name, *arguments in steps:
                getattr(history, name)(*arguments)
                for counter in BOTH:
                    assert_reads(*history.keys, counter=counter)
            for counter in BOTH:
                history.wake(counter)
                assert_heals(*history.keys, counter=counter)
        finally:
            Issue.objects.all().delete()
            Project.objects.all().delete()
            ProjectIssueCount.objects.all().delete()
