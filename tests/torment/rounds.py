"""A round: traffic under some kinds of fault, then calm; HEAL_AFTER and two runs of a flusher later all is exact."""

import random
import time
from collections import Counter as Tally
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connections
from django.db.models import Count, Q, Sum
from django.test import override_settings

import servers
from notifications_counter.counters import unread
from notifications_counter.models import Notification, UserNotificationsCount
from tests.support import CLUSTER, is_walking

from . import truth
from .database import clients
from .database_faults import DatabaseFaults
from .journal import Notes, now
from .processes import release
from .redis_faults import RedisFaults
from .site import MISFORTUNES, Site
from .tenants import at, current, each, tenants
from .tormentor import PATIENCE, PROXIED, SETUP, Tormentor, start_redis

ENTRIES = {"HEAL_AFTER": 1, "RETRY_AFTER": 0.1, "TOTAL_TTL": 1}
ANY_OF: dict[str, list[Any]] = {"SHARDS": [1, 1, 3], "RECORD_ACTIVITY": [False, True]}
SOCKET_TIMEOUT = 0.3  # seconds
TORMENT = 2.0  # seconds
USERS = 10

KILLS = ("writers_killed", "flushers_killed", "readers_killed", "recounters_killed")
STOPS = ("writers_stopped", "flushers_stopped")
INTERRUPTIONS = ("interrupted", "statements_timed_out", "clients_ended_at_a_lock")
DISTURBANCES = ("redis_restarted_with_aof", "redis_stalled", "connections_broken", "connections_refused")
SAFE_WITH_A_LOSS = ("flushers_killed", "readers_killed", *STOPS, "user_deleted", "rolled_back")
LOSSES = (
    "redis_restarted_empty", "redis_restarted_with_old_rdb", "redis_failed_over", "redis_failed_over_and_back",
    "sentinel_failed_over", "redis_keys_deleted",
)  # fmt: skip
PAST = ("database_restored", "database_failed_over")
SLOW = {"sentinel_failed_over", "deployed", *PAST}
SINGLE = (
    *KILLS, *STOPS, *MISFORTUNES, *INTERRUPTIONS, *DISTURBANCES, "database_connections_broken", "deployed", *LOSSES,
    *PAST,
)  # fmt: skip
ROUNDS: dict[str, tuple[str, ...]] = {
    **{fault: (fault,) for fault in SINGLE},
    "all_but_a_loss": (*KILLS, *STOPS, *MISFORTUNES, "interrupted", *DISTURBANCES),
    "deployed_and_more": ("deployed", "redis_restarted_with_aof", "rolled_back", "user_deleted", "readers_killed"),
    "interruptions_and_all_killed": (*INTERRUPTIONS, *KILLS, *MISFORTUNES),
    **{f"{past}_and_more": (past, *SAFE_WITH_A_LOSS) for past in PAST},
    **{f"{loss}_and_more": (loss, *SAFE_WITH_A_LOSS) for loss in LOSSES},
    **{f"{loss}_and_all_killed": (loss, *KILLS, *STOPS, *MISFORTUNES) for loss in LOSSES},
}
OF_SUMS = "sums_"
"""Begins the names of rounds in which the counter adds up a column."""
ROUNDS |= {
    f"{OF_SUMS}{name}": ROUNDS[name]
    for name in ("all_but_a_loss", "deployed_and_more", "database_restored_and_more", "redis_failed_over_and_more")
}


class AllFaults(RedisFaults, DatabaseFaults):
    """Who can do all of them."""


def rounds() -> list[str]:
    """Those for the servers under torment. Clients of a sentinel or a cluster would go past the proxy."""
    impossible = set(PROXIED) if SETUP in ("cluster", "sentinel") else set()
    if SETUP in ("cluster", "managed"):
        impossible.add("sentinel_failed_over")
    if current().vendor != "postgresql":
        impossible.add("database_failed_over")
    return [name for name, faults in ROUNDS.items() if impossible.isdisjoint(faults)]


class Wrong(AssertionError):
    """A promise was broken; the text says all that is known."""


@dataclass
class Survived:
    """What a run has gone through. A round is ``void`` if it cannot be judged."""

    rounds: int = 0
    void: int = 0
    calls: Tally[str] = field(default_factory=Tally)
    faults: Tally[str] = field(default_factory=Tally)
    ambushes: Tally[str] = field(default_factory=Tally)
    recounts: int = 0
    recounted_wrong: int = 0

    def report(self, seconds: float) -> str:
        calls = ", ".join(f"{number:,} {what}" for what, number in self.calls.items())
        lines = [f"{seconds:.0f} seconds, {self.rounds} rounds, {self.void} void; {calls}. Survived:"]
        lines += [f"{times:7,} {fault.replace('_', ' ')}" for fault, times in sorted(self.faults.items())]
        if self.ambushes:
            lines.append("Killed and stopped at named moments, among these:")
            lines += [f"{times:7,} {moment}" for moment, times in sorted(self.ambushes.items())]
        if self.recounts:
            lines.append(
                f"recount_counters found something in {self.recounted_wrong} of {self.recounts} rounds that lost "
                "Redis and killed writers."
            )
        return "\n".join(lines)


class Round:
    def __init__(self, name: str, seed: int, users: list[Any], survived: Survived):
        self.name, self.faults, self.seed = name, ROUNDS[name], seed
        self.users, self.survived = users, survived
        self.chance = random.Random(seed)
        # A transaction that stands still is taken for dead, unless it could die after that.
        age = {"MAX_TRANSACTION_AGE": 6 if "writers_killed" in self.faults else 1}
        if "deployed" in self.faults:
            age["DEPLOY_SECONDS"] = 3
        self.entries = ENTRIES | age | {name: self.chance.choice(values) for name, values in ANY_OF.items()}
        self.options: dict[str, Any] = {"SOCKET_CONNECT_TIMEOUT": SOCKET_TIMEOUT, "SOCKET_TIMEOUT": SOCKET_TIMEOUT}
        if SETUP == "pool":
            self.options["CONNECTION_POOL_KWARGS"] = {"max_connections": self.chance.choice([2, 3])}
        elif SETUP == "cluster":
            self.options["CONNECTION_FACTORY"] = CLUSTER
            self.entries["SHARDS"] = 3

    @property
    def loses_twice(self) -> bool:
        """Is Redis lost, and writers killed with it?"""
        return not {"writers_killed", "hook_raised"}.isdisjoint(self.faults) and not set(LOSSES).isdisjoint(self.faults)

    def run(self) -> None:
        with ExitStack() as stack:
            server = stack.enter_context(start_redis())
            directory = stack.enter_context(servers.temporary_directory())
            stack.enter_context(self.settings(server))
            stack.callback(release, unread.q, unread.sum)
            condition = self.chance.choice([truth.WIDE, truth.NARROW]) if "deployed" in self.faults else unread.q
            release(condition, "id" if self.name.startswith(OF_SUMS) else None)
            base: dict[str, int] = {}
            for _ in each():
                unread.heal()
                unread.flush(chunk_size=5000)  # a round may choose chunks of one user
                for condition in (truth.WIDE, truth.NARROW):
                    base |= {truth.owner_name(user, condition): n for user, n in self.rows(condition).items()}
            truth.take()
            others = clients()
            connections.close_all()
            site = Site(self.users, self.seed, directory, self.faults)
            tormentor = AllFaults(site, server, self.faults, self.chance, stack)
            try:
                tormentor.run(TORMENT if SLOW.isdisjoint(self.faults) else 3 * TORMENT)
                if tormentor.had_two_masters():
                    self.survived.void += 1
                    return
                stack.enter_context(self.settings(tormentor.server))
                self.calm_down(others)
                wrong = self.check(base, tormentor)
            except servers.Missing:
                raise
            except Exception as error:
                raise Wrong(self.story(tormentor, [repr(error)])) from error
            if wrong:
                raise Wrong(self.story(tormentor, wrong))

    def settings(self, server: servers.Server) -> override_settings:
        """Its own Redis, and little patience."""
        cache = settings.CACHES["default"]
        return override_settings(
            CACHES={"default": {**cache, "LOCATION": server.url, "OPTIONS": {**cache["OPTIONS"], **self.options}}},
            NOTIFICATIONS_COUNTER={**settings.NOTIFICATIONS_COUNTER, **self.entries},
        )

    def calm_down(self, others: set[int]) -> None:
        """Wait until the database has ended what clients that died had asked for."""
        deadline = now() + PATIENCE
        while not clients() <= others:
            assert now() < deadline, "the database still works for clients that are gone"
            time.sleep(0.02)

    def check(self, base: dict[str, int], tormentor: Tormentor) -> list[str]:
        """What is wrong once the app has had all the time that it may take."""
        notes = Notes.of(tormentor.site.directory, tormentor.died)
        history = notes.history(base, truth.take(), tormentor.losses)
        # Of each write: nobody waits for the reply to a confirmation, so any may be lost.
        self.heal(max([0.0, *(write.due for write in notes.writes)]))
        wrong = [difference for _ in each() for difference in self.differences(history.sums())]
        wrong += history.impossible()
        self.survived.rounds += 1
        self.survived.faults += tormentor.survived
        self.survived.faults.update(write.action for write in notes.writes if write.action in MISFORTUNES)
        self.survived.faults += notes.faults
        self.survived.ambushes += notes.ambushes
        self.survived.calls.update(writes=len(notes.writes), reads=len(notes.reads), flushes=notes.flushed)
        return wrong

    def heal(self, due: float) -> None:
        """Wait until then, and do what heals."""
        time.sleep(max(0.0, due - now()))
        if self.loses_twice:
            self.survived.recounts += 1
            self.survived.recounted_wrong += sum(unread.recount().wrong for _ in each()) > 0
        for _ in range(2):
            for _ in each():
                unread.heal()
                while is_walking():  # a flusher was killed with a page
                    time.sleep(1)
                    unread.heal()
                unread.flush()

    def rows(self, condition: Q) -> dict[Any, int]:
        found = Sum(unread.sum) if unread.sum else Count("pk")
        rows = Notification.objects.filter(condition)
        return {user: int(rows.for_user(user).aggregate(found=found)["found"] or 0) for user in self.users}

    def differences(self, by_truth: dict[str, int]) -> list[str]:
        rows = self.rows(unread.q)
        stored = dict(UserNotificationsCount.objects.values_list("pk", "unread_count"))
        seen = {
            "triggers": {user: by_truth[truth.owner_name(user)] for user in self.users},
            "stored": {user: stored.get(user, 0) for user in self.users},
            "count": {user: unread.count(user) for user in self.users},
            "count again": {user: unread.count(user) for user in self.users},
            "counts": unread.counts(self.users),
        }
        wrong = [
            f"{truth.owner_name(user)}: {what} {numbers[user]}, rows {rows[user]}"
            for what, numbers in seen.items()
            for user in self.users
            if numbers[user] != rows[user]
        ]
        for shard in unread.status():
            s = shard.status
            if s.pending or s.flushing or s.aside or not shard.is_ready:
                wrong.append(f"left over: {shard}")
        return wrong

    def story(self, tormentor: Tormentor, wrong: list[str]) -> str:
        lines = [
            f"round {self.name}, seed {self.seed}, {self.entries}: {len(wrong)} wrong",
            *wrong[:20],
            "",
            "The last events:",
        ]
        lines += [f"{when:.6f} {event}" for when, event in tormentor.events[-60:]]
        return "\n".join([*lines, "", tormentor.site.tracebacks.read_text()])


def make_users() -> list[Any]:
    """Users, who have the same primary keys with every tenant."""
    model = get_user_model()
    names = [f"tormented {number}" for number in range(USERS)]
    with at(tenants()[0]):
        users = [model.objects.create(username=name).pk for name in names]
    for tenant in tenants()[1:]:
        with at(tenant):
            model.objects.bulk_create(model(pk=pk, username=name) for pk, name in zip(users, names, strict=True))
    return users
