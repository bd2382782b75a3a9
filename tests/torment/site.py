"""What the processes of a site under traffic do."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth import get_user_model
from django.db import IntegrityError, connections, transaction

from notifications_counter.counters import unread
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import CounterShard, Notification, UserNotificationsCount
from notifications_counter.upkeep.heal import put_in_force
from notifications_counter.upkeep.places import at, local_counters
from tests.faults.actors import Change, Reader, Writer, atomic
from tests.support import entries

from . import database, tenants, truth
from .journal import Journal, now
from .processes import INTERRUPTS, OUTAGES, PAUSE, Interruptible, Processes

MISFORTUNES = ("user_deleted", "rolled_back", "hook_raised")


class HookRaised(Exception):
    pass


class HarriedWriter(Writer):
    """A writer with misfortunes of its own."""

    misfortunes: tuple[str, ...] = ()

    def choose(self) -> Callable[[], Change]:
        if self.misfortunes and self.chance.random() < 0.15:
            return getattr(self, self.chance.choice(self.misfortunes))
        if len(tenants.tenants()) > 1 and self.chance.random() < 0.1:
            return self.of_two_tenants
        return super().choose()

    def of_two_tenants(self) -> Change:
        """Change rows of another tenant inside of a transaction: with schemas, it commits both."""
        with atomic():
            self.create()
            with tenants.at(self.chance.choice(tenants.tenants())):
                self.bulk_create()
            self.save_own()
        return {}

    def user_deleted(self) -> Change:
        """Delete a user, or create one again under the same primary key."""
        user = self.chance.choice(self.users[-3:])
        model = get_user_model()
        deleted, _ = model.objects.filter(pk=user).delete()
        if not deleted:
            model.objects.create(pk=user, username=f"{user} {self.chance.random()}")
        return {}

    def rolled_back(self) -> Change:
        """All of a transaction, or what followed a savepoint."""
        return self.chance.choice([self.roll_back, self.savepoints])()

    def hook_raised(self) -> Change:
        """Somebody else's hook raises on commit, before ours is called or after."""

        def fail() -> None:
            raise HookRaised

        using = tenants.current().alias
        with transaction.atomic(using=using):
            if self.chance.random() < 0.5:
                transaction.on_commit(fail, using)
                self.bulk_create()
            else:
                self.bulk_create()
                transaction.on_commit(fail, using)
        return {}


class Site(Processes):
    """What each process does: a method for each role."""

    def writer(self, journal: Journal, chance: random.Random) -> None:
        writer = HarriedWriter(journal.name, self.users, chance)
        writer.misfortunes = tuple(misfortune for misfortune in MISFORTUNES if misfortune in self.faults)
        outages: list[str] = []
        _tell(BufferUnavailable, outages)

        def write(interruptible: Interruptible) -> None:
            call, action, calm = journal.call(), writer.choose(), self.signs.calm
            truth.this_is(call)
            outages.clear()
            raised = ""
            journal.note("begin", call, action.__name__, now())
            try:
                with interruptible:
                    action()
            except (*OUTAGES, *INTERRUPTS, IntegrityError, HookRaised) as error:
                raised = type(error).__name__
                self.broken_by(error, journal)
                for connection in connections.all():
                    connection.close_if_unusable_or_obsolete()
            journal.note("end", now(), bool(outages), raised)
            if calm and not outages and not raised:
                self.signs.works = True

        self.repeat("writer", journal, chance, write)

    def reader(self, journal: Journal, chance: random.Random) -> None:
        reader = Reader(self.users, chance)

        def read(interruptible: Interruptible) -> None:
            start = now()
            with interruptible:
                seen = reader()
            numbers = {truth.owner_name(user): number for user, number in seen.items()}
            journal.note("read", start, now(), numbers)

        self.repeat("reader", journal, chance, read)

    def flusher(self, journal: Journal, chance: random.Random) -> None:
        def flush(interruptible: Interruptible) -> None:
            start, calm = now(), self.signs.calm
            with _buffer_needed():
                locals_ = local_counters([unread])
                heals = True  # else another release does, or nobody until DEPLOY_SECONDS are over
                for local in locals_:
                    with at(local.place), interruptible:
                        heals &= put_in_force(unread)
                        unread.heal()
                        heals &= put_in_force(unread)
                if heals:
                    journal.note("healed", start, now())
                    if calm:
                        self.signs.healed = True
                for local in locals_:
                    with at(local.place), interruptible:
                        flushed = unread.flush().owners
                    if flushed:
                        journal.note("flushed")

        self.repeat("flusher", journal, chance, flush)

    def recounter(self, journal: Journal, chance: random.Random) -> None:
        def recount(interruptible: Interruptible) -> None:
            with _buffer_needed(), interruptible:
                unread.recount(self.users[::3])

        self.repeat("recounter", journal, chance, recount)

    def administrator(self, journal: Journal, chance: random.Random) -> None:
        """Does what `recount_counters --restored` does, for this counter, after the database went back."""
        locals_ = local_counters([unread])
        for local in locals_:
            with at(local.place):
                unread.invalidate()
        for local in locals_:
            with at(local.place):
                unread.heal()
                unread.recount()

    def installer(self, journal: Journal, chance: random.Random) -> None:
        """Starts the release with which the site begins."""
        with entries(DEPLOY_SECONDS=0):
            self.upgrader(journal, chance)

    def upgrader(self, journal: Journal, chance: random.Random) -> None:
        """The first run of a new flusher, once Redis is there."""
        for _ in tenants.each():
            while True:
                with _buffer_needed():
                    unread.heal()
                    unread.flush()
                    break
                time.sleep(PAUSE["flusher"])

    def locker(self, journal: Journal, chance: random.Random) -> None:
        """Holds locks, and ends the clients that wait for them, or only their statements."""

        def lock(_: Interruptible) -> None:
            user = chance.choice(self.users)
            locked: Any = chance.choice([
                get_user_model().objects.filter(pk=user),
                Notification.objects.filter(user_id=user),
                UserNotificationsCount.objects.filter(pk=user),
                CounterShard.objects.all(),
            ])  # fmt: skip
            with atomic():
                list(locked.select_for_update(skip_locked=True))
                for _ in range(chance.randint(1, 5)):
                    time.sleep(chance.uniform(0.01, 0.1))
                    for client in database.waiting_clients():
                        database.end(client, only_its_statement=chance.random() < 0.5)
                        journal.note("fault", "clients_ended_at_a_lock")

        self.repeat("locker", journal, chance, lambda _: None if self.signs.calm else lock(_))


@contextmanager
def _buffer_needed() -> Iterator[None]:
    """What needs the buffer is given up without it; if what broke is the database, the next try has a new connection,
    as in `flush_counters --loop`."""
    try:
        yield
    except BufferUnavailable:
        connections.close_all()


def _tell(error: type[Exception], told: list[str]) -> None:
    """Note every such error that is made, also if somebody deals with it."""
    init = error.__init__

    def noting(self: Exception, *args: Any) -> None:
        told.append(str(args))
        init(self, *args)

    error.__init__ = noting  # type: ignore[method-assign]
