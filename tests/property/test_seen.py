"""Any history of seeing and reading: both counts are COUNT(*) after every step."""

from contextlib import ExitStack
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from notifications_counter.counters import unread, unseen
from notifications_counter.models import Notification
from notifications_counter.testing import isolated_counters
from tests.support import OtherConnection, assert_heals, rows

from .test_machine import HISTORIES

pytestmark = pytest.mark.slow

BOTH = (unread, unseen)

owner = st.integers(0, 1)
which = st.integers(0, 1000)
times = st.sampled_from(["seen_at", "read_at"])
way = st.sampled_from(["mark_as_seen", "mark_as_read", "mark_as_unread"])


class SeenAndRead(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(isolated_counters(COUNTERS=["unread", "unseen"], HEAL_AFTER=0))
        self.other = self.stack.enter_context(OtherConnection())
        self.users = [get_user_model().objects.create_user(f"user{i}") for i in range(2)]
        self.keys = [user.pk for user in self.users]
        self.block: Any = None
        for counter in BOTH:
            counter.heal()

    def teardown(self) -> None:
        try:
            if self.block:
                self.end(commit=True)
            for counter in BOTH:
                assert_heals(*self.keys, counter=counter)
        finally:
            self.stack.close()
            Notification.objects.all().delete()
            unread.totals.objects.all().delete()
            get_user_model().objects.all().delete()

    @invariant()
    def both_are_right(self) -> None:
        for counter in BOTH:
            right = {key: rows(key, counter) for key in self.keys}
            assert counter.counts(self.keys) == right
            assert {key: counter.count(key) for key in self.keys} == right

    @rule(owner=owner, given=st.sets(times), number=st.integers(1, 3))
    def create(self, owner: int, given: set[str], number: int) -> None:
        values = dict.fromkeys(given, timezone.now())
        new = [Notification(user=self.users[owner], title="x", **values) for _ in range(number)]
        if number == 1:
            new[0].save()
        else:
            Notification.objects.bulk_create(new)

    @rule(way=way, owners=st.sets(owner, min_size=1))
    def mark(self, way: str, owners: set[int]) -> None:
        mine = Notification.objects.filter(user__in=[self.keys[i] for i in owners])
        if len(owners) == 1:
            mine = Notification.objects.for_user(self.keys[owners.pop()])
        assert getattr(mine, way)() <= mine.count()

    def one(self, at: int) -> Notification | None:
        found = list(Notification.objects.order_by("pk"))
        return found[at % len(found)] if found else None

    @rule(way=way, at=which)
    def mark_one(self, way: str, at: int) -> None:
        if one := self.one(at):
            getattr(one, way)()
            assert (one.seen_at, one.read_at) == Notification.objects.values_list("seen_at", "read_at").get(pk=one.pk)
            assert way == "mark_as_unread" or one.seen_at or one.read_at

    @rule(name=times, empty=st.booleans(), owner=owner)
    def update(self, name: str, empty: bool, owner: int) -> None:
        """By a site that knows nothing of the other column."""
        Notification.objects.for_user(self.keys[owner]).update(**{name: None if empty else timezone.now()})

    @rule(name=times, empty=st.booleans(), at=which, to=owner)
    def save(self, name: str, empty: bool, at: int, to: int) -> None:
        if one := self.one(at):
            setattr(one, name, None if empty else timezone.now())
            one.user_id = self.keys[to]
            one.save()

    @rule(at=which)
    def delete(self, at: int) -> None:
        if one := self.one(at):
            one.delete()

    @precondition(lambda self: not self.block)
    @rule()
    def begin(self) -> None:
        self.block = transaction.atomic()
        self.block.__enter__()

    @precondition(lambda self: self.block)
    @rule(commit=st.booleans())
    def end(self, commit: bool) -> None:
        transaction.set_rollback(not commit)
        self.block.__exit__(None, None, None)
        self.block = None

    @rule(counter=st.sampled_from(BOTH), job=st.sampled_from(["flush", "heal", "recount"]))
    def meanwhile(self, counter: Any, job: str) -> None:
        """Another process works on one of the two."""
        if not (self.block and connection.vendor == "sqlite"):
            self.other.run(getattr(counter, job))


@pytest.mark.timeout(600)
@pytest.mark.django_db(transaction=True)
def test_any_history() -> None:
    run_state_machine_as_test(SeenAndRead, settings=settings(HISTORIES, max_examples=20, stateful_step_count=20))
