"""Any history of changes, savepoints, rollbacks, flushes, recounts and losses: every read is right after every step."""

from contextlib import ExitStack
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.testing import delete_keys, isolated_counters
from tests.support import OtherConnection, assert_heals, savepoint_create
from tests.tasks.models import Alert, Invitation

HISTORIES = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

pytestmark = pytest.mark.slow

Row = tuple[int, bool]  # number of the owner, unread

owner = st.integers(0, 2)
owners = st.sets(owner, min_size=1)
which = st.integers(0, 1000)
is_unread = st.booleans()


class Undone(Exception):
    pass


def read_at(unread: bool) -> Any:
    return None if unread else timezone.now()


class History(RuleBasedStateMachine):
    """``rows`` is what this connection must see, ``committed`` what everybody else must."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(isolated_counters(HEAL_AFTER=0, FLUSH_CHUNK=2))
        self.other = self.stack.enter_context(OtherConnection())
        self.model = get_user_model()
        self.users = [self.model.objects.create_user(f"user{i}") for i in range(3)]
        self.keys = [user.pk for user in self.users]
        self.rows: dict[Any, Row] = {}
        self.committed: dict[Any, Row] = {}
        self.instances: list[Notification] = []  # as they were when they were loaded
        self.open: list[tuple[Any, dict[Any, Row]]] = []  # atomic block or savepoint, rows before it
        unread.heal()

    def teardown(self) -> None:
        try:
            while self.open:
                self.end(commit=True)
            assert_heals(*self.keys)
            found = Notification.objects.values_list("pk", "user", "read_at")
            assert {pk: (self.keys.index(key), at is None) for pk, key, at in found} == self.committed
        finally:
            if connection.in_atomic_block:
                transaction.set_rollback(True)
                while self.open:
                    self.open.pop()[0].__exit__(None, None, None)
            self.stack.close()
            Notification.objects.all().delete()
            unread.totals.objects.all().delete()
            self.model.objects.all().delete()

    # ------------------------------------------------------------------ what must be true
    def counts(self, rows: dict[Any, Row]) -> dict[Any, int]:
        return {key: sum(row == (i, True) for row in rows.values()) for i, key in enumerate(self.keys)}

    @invariant()
    def reads_are_right(self) -> None:
        assert unread.counts(self.keys) == self.counts(self.rows)
        assert {key: unread.count(key) for key in self.keys} == self.counts(self.rows)

    @invariant()
    def so_are_those_of_others(self) -> None:
        assert self.other.run(unread.counts, self.keys) == self.counts(self.committed)

    def changed(self) -> None:
        if not self.open:
            self.committed = dict(self.rows)

    # ----------------------------------------------------------------------- creation
    @rule(owner=owner, unread=is_unread, model=st.sampled_from([Notification, Alert, Invitation]))
    def create(self, owner: int, unread: bool, model: Any) -> None:
        made = model.objects.create(user_id=self.keys[owner], title="x", read_at=read_at(unread))
        self.rows[made.pk] = owner, unread
        self.changed()

    @rule(them=st.lists(st.tuples(owner, is_unread), max_size=5), conflict=st.booleans(), at=which)
    def bulk_create(self, them: list[Row], conflict: bool, at: int) -> None:
        new = [Notification(user_id=self.keys[owner], title="x", read_at=read_at(unread)) for owner, unread in them]
        if conflict and self.rows:
            new.append(Notification(pk=self.any_row(at), user_id=self.keys[0], title="x"))
        before = set(self.rows)
        Notification.objects.bulk_create(new, ignore_conflicts=conflict)
        found = Notification.objects.exclude(pk__in=before).values_list("pk", "user", "read_at")
        self.rows.update({pk: (self.keys.index(key), at is None) for pk, key, at in found})
        self.changed()

    # ------------------------------------------------------------------------- saving
    def any_row(self, at: int) -> Any:
        return sorted(self.rows)[at % len(self.rows)]

    @precondition(lambda self: self.rows)
    @rule(at=which, model=st.sampled_from([Notification, Alert]))
    def load(self, at: int, model: Any) -> None:
        self.instances.append(model.objects.get(pk=self.any_row(at)))

    @precondition(lambda self: self.instances)
    @rule(at=which, owner=st.none() | owner, unread=st.none() | is_unread)
    def save(self, at: int, owner: int | None, unread: bool | None) -> None:
        """Writes all that the instance believes, and inserts it again if it is gone."""
        one = self.instances[at % len(self.instances)]
        if owner is not None:
            one.user_id = self.keys[owner]
        if unread is not None:
            one.read_at = read_at(unread)
        if one.pk is None:
            one.pk = max(self.rows, default=0) + 1000
        one.save()
        self.rows[one.pk] = self.keys.index(one.user_id), one.read_at is None
        self.changed()

    @precondition(lambda self: any(one.pk in self.rows for one in self.instances))
    @rule(at=which, unread=is_unread)
    def save_a_field(self, at: int, unread: bool) -> None:
        there = [one for one in self.instances if one.pk in self.rows]
        one = there[at % len(there)]
        one.read_at = read_at(unread)
        one.save(update_fields=["read_at"])
        self.rows[one.pk] = self.rows[one.pk][0], unread
        self.changed()

    # ----------------------------------------------------------------------- updating
    def select(self, owners: set[int], how: str) -> Any:
        keys = [self.keys[i] for i in owners]
        if how == "own" and len(keys) == 1:
            return Notification.objects.for_user(keys[0])
        if how == "joined":
            return Notification.objects.filter(user__username__in=[f"user{i}" for i in owners])
        if how == "many":
            return Notification.objects.filter(user__in=keys, user__notifications__title="x").distinct()
        return Notification.objects.filter(user__in=keys)

    how = st.sampled_from(["own", "joined", "many"])

    @rule(owners=owners, how=how, unread=is_unread)
    def mark(self, owners: set[int], how: str, unread: bool) -> None:
        selected = self.select(owners, how)
        done = selected.mark_as_unread() if unread else selected.mark_as_read()
        hit = {pk for pk, row in self.rows.items() if row[0] in owners and row[1] != unread}
        assert done == len(hit)
        self.rows.update({pk: (self.rows[pk][0], unread) for pk in hit})
        self.changed()

    @rule(owners=owners, how=how, to=st.none() | owner, unread=is_unread)
    def update(self, owners: set[int], how: str, to: int | None, unread: bool) -> None:
        values = {"read_at": read_at(unread)} if to is None else {"read_at": read_at(unread), "user": self.keys[to]}
        hit = {pk for pk, row in self.rows.items() if row[0] in owners}
        assert self.select(owners, how).update(**values) == len(hit)
        self.rows.update({pk: (self.rows[pk][0] if to is None else to, unread) for pk in hit})
        self.changed()

    @rule(them=st.lists(st.tuples(which, owner, is_unread), max_size=4))
    def bulk_update(self, them: list[tuple[int, int, bool]]) -> None:
        new = {self.any_row(at): (owner, unread) for at, owner, unread in them if self.rows}
        objects = [Notification(pk=pk, user_id=self.keys[o], read_at=read_at(u)) for pk, (o, u) in new.items()]
        Notification.objects.bulk_update(objects, ["user", "read_at"])
        self.rows.update(new)
        self.changed()

    # ----------------------------------------------------------------------- deletion
    @precondition(lambda self: self.instances)
    @rule(at=which)
    def delete(self, at: int) -> None:
        one = self.instances.pop(at % len(self.instances))
        if one.pk is not None:
            self.rows.pop(one.pk, None)
            one.delete()
            self.changed()

    @rule(owners=owners, how=how, replace=st.booleans())
    def delete_all(self, owners: set[int], how: str, replace: bool) -> None:
        """The rows of some users, or with the users themselves, after whom others come with the same keys."""
        if replace:
            for owner in owners:
                self.model.objects.get(pk=self.keys[owner]).delete()
                self.model.objects.create_user(f"user{owner}", pk=self.keys[owner])
        else:
            self.select(owners, how).delete()
        self.rows = {pk: row for pk, row in self.rows.items() if row[0] not in owners}
        self.changed()

    # ------------------------------------------------------------------- transactions
    @precondition(lambda self: len(self.open) < 4)
    @rule(by_hand=st.booleans())
    def begin(self, by_hand: bool) -> None:
        """A transaction, and inside of it savepoints of either kind."""
        block: Any = transaction.atomic()
        if self.open and by_hand:
            block = savepoint_create()
        else:
            block.__enter__()
        self.open.append((block, dict(self.rows)))

    @precondition(lambda self: self.open)
    @rule(commit=st.booleans())
    def end(self, commit: bool) -> None:
        """Innermost first."""
        block, before = self.open.pop()
        if isinstance(block, transaction.Atomic):
            block.__exit__(*((None, None, None) if commit else (Undone, Undone(), None)))
        elif commit:
            transaction.savepoint_commit(block)
        else:
            transaction.savepoint_rollback(block)
        if not commit:
            self.rows = before
        self.changed()

    @precondition(lambda self: self.open and not isinstance(self.open[-1][0], transaction.Atomic))
    @rule()
    def roll_back_and_go_on(self) -> None:
        """A savepoint is still there after it was rolled back to."""
        savepoint, before = self.open[-1]
        transaction.savepoint_rollback(savepoint)
        self.rows = dict(before)

    # --------------------------------------------------------------------- the machinery
    def elsewhere(self, work: Any, *args: Any, **kwargs: Any) -> None:
        """By another process; where there is one writer at a time, not before this one is done."""
        if not (self.open and connection.vendor == "sqlite"):
            self.other.run(work, *args, **kwargs)

    @rule(
        event=st.sampled_from(["flush", "part", "heal", "recount", "everyone", "forget", "lose", "leave"]), owner=owner
    )
    def meanwhile(self, event: str, owner: int) -> None:
        key, buffer = self.keys[owner], unread.buffers[0]
        if event == "flush":
            self.elsewhere(unread.flush)
        elif event == "part":  # a flusher that is stopped half way
            self.elsewhere(unread.flush, stopped=iter([False, True, True]).__next__)
        elif event == "heal":
            self.elsewhere(unread.heal)
        elif event == "recount":
            self.elsewhere(unread.recount, [key])
        elif event == "everyone":
            self.elsewhere(unread.recount)
        elif event == "forget":  # a cached total that expires
            ready = buffer.status().ready
            buffer.client.call(buffer.keys.ready, "DEL", buffer.keys.total(ready, str(key)))
        elif not self.open or owner == 0:
            delete_keys(options.KEY_PREFIX)
            if event == "lose":
                self.elsewhere(unread.heal)


@pytest.mark.timeout(600)
@pytest.mark.django_db(transaction=True)
def test_any_history() -> None:
    run_state_machine_as_test(History, settings=HISTORIES)
