"""A round: traffic under some kinds of fault, then calm; HEAL_AFTER and two runs of a flusher later all is exact."""

import random
import time
from collections import Counter as Tally
from contextlib import ExitStack
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Count, Q, Sum
from django.test import override_settings

import servers
from notifications_counter.counters import unread
from notifications_counter.models import Notification, UserNotificationsCount
from notifications_counter.monitoring.status import read_counter
from notifications_counter.upkeep.phases import Phase
from tests.support import CLUSTER, is_ready

from . import truth
from .faults import PATIENCE, SETUP, Tormentor, start_redis
from .history import Notes, Numbers, now
from .site import Site, release

ENTRIES = {"RETRY_AFTER": 0.1, "TOTAL_TTL": 1}
SOCKET_TIMEOUT = 0.3  # seconds
TORMENT = 2.0  # seconds
USERS = 10

KILLS = ("writers_killed", "flushers_killed", "readers_killed")
STOPS = ("writers_stopped", "flushers_stopped")
SAFE_WITH_A_LOSS = ("flushers_killed", "readers_killed", *STOPS)
LOSSES = ("redis_restarted_empty", "redis_restarted_with_old_rdb", "sentinel_failed_over")
SLOW = {"sentinel_failed_over", "deployed"}
KILLED = (*KILLS, *STOPS, "redis_restarted_with_aof")
ROUNDS: dict[str, tuple[str, ...]] = {
    "killed": KILLED,
    "disturbed": (*KILLED, "connections_broken"),
    "database_connections_broken": ("database_connections_broken",),
    "deployed": ("deployed", "redis_restarted_with_aof", "readers_killed"),
    **{fault: (fault, *SAFE_WITH_A_LOSS) for fault in LOSSES},
}
OF_SUMS = "sums_"
"""Begins the names of rounds in which the counter adds up a column."""
ROUNDS |= {f"{OF_SUMS}{name}": ROUNDS[name] for name in ("disturbed", "deployed", "redis_restarted_with_old_rdb")}


def rounds() -> list[str]:
    """Those for the servers under torment. Clients of a sentinel or a cluster would go past the proxy."""
    impossible = {"connections_broken"} if SETUP in ("cluster", "sentinel") else set()
    if SETUP == "cluster":
        impossible.add("sentinel_failed_over")
    return [name for name, faults in ROUNDS.items() if impossible.isdisjoint(faults)]


class Wrong(AssertionError):
    """A promise was broken; the text says all that is known."""


class Round:
    """One round. ``survived`` says how often what has happened."""

    def __init__(self, name: str, seed: int, users: list[Any], survived: Tally[str]):
        self.name, self.faults, self.seed = name, ROUNDS.get(name, (name,)), seed
        self.users, self.survived = users, survived
        self.chance = random.Random(seed)
        # A transaction that stands still is taken for dead, unless it could die after that.
        age = {"MAX_TRANSACTION_AGE": 6 if "writers_killed" in self.faults else 1}
        if "deployed" in self.faults:
            age["DEPLOY_SECONDS"] = 3
        self.entries = ENTRIES | age | {"WALK_SECONDS": self.chance.choice([0, 0.1])}
        self.entries["HEAL_AFTER"] = self.chance.choice([1, 2])  # with 1, each confirmation is waited for
        self.options: dict[str, Any] = {"SOCKET_CONNECT_TIMEOUT": SOCKET_TIMEOUT, "SOCKET_TIMEOUT": SOCKET_TIMEOUT}
        if SETUP == "pool":
            self.options["CONNECTION_POOL_KWARGS"] = {"max_connections": self.chance.choice([2, 3])}
        elif SETUP == "cluster":
            self.options["CONNECTION_FACTORY"] = CLUSTER

    def run(self) -> None:
        with ExitStack() as stack:
            server = stack.enter_context(start_redis())
            directory = stack.enter_context(servers.temporary_directory())
            stack.enter_context(self.settings(server))
            stack.callback(release, unread.q, unread.sum)
            condition = self.chance.choice([truth.WIDE, truth.NARROW]) if "deployed" in self.faults else unread.q
            release(condition, "id" if self.name.startswith(OF_SUMS) else None)
            unread.heal()
            unread.flush()
            base = {
                truth.owner_name(user, condition): number
                for condition in (truth.WIDE, truth.NARROW)
                for user, number in self.rows(condition).items()
            }
            truth.take()
            others = truth.clients()
            connection.close()
            site = Site(self.users, self.seed, directory)
            tormentor = Tormentor(site, server, self.faults, self.chance, stack)
            try:
                tormentor.run(TORMENT if SLOW.isdisjoint(self.faults) else 3 * TORMENT)
                if tormentor.had_two_masters():
                    self.survived["rounds that cannot be judged"] += 1
                    return
                stack.enter_context(self.settings(tormentor.server))
                tormentor.wait(lambda: truth.clients() <= others)  # those that died may have asked for something
                wrong = self.check(base, tormentor)
            except servers.Missing:
                raise
            except Exception as error:
                raise Wrong(self.story(tormentor, [repr(error)])) from error
            if wrong:
                raise Wrong(self.story(tormentor, wrong))

    def settings(self, server: servers.Server) -> override_settings:
        """Its own Redis, a pool of its own, since django-redis has one for each address, and little patience."""
        cache = settings.CACHES["default"]
        own = {"LOCATION": f"{server.url}#{now()}", "OPTIONS": {**cache["OPTIONS"], **self.options}}
        return override_settings(
            CACHES={"default": {**cache, **own}},
            NOTIFICATIONS_COUNTER={**settings.NOTIFICATIONS_COUNTER, **self.entries},
        )

    def check(self, base: Numbers, tormentor: Tormentor) -> list[str]:
        """What is wrong once the app has had all the time that it may take."""
        notes, changes = Notes.of(tormentor.site.directory, tormentor.died), truth.take()
        sums = Tally(base)
        for numbers in changes.values():
            sums.update(numbers)
        # Of each write: nobody waits for the reply to a confirmation, so any may be lost.
        self.heal(max([0.0, *(write.due for write in notes.writes)]))
        wrong = self.differences(sums)
        wrong += notes.impossible(base, changes, tormentor.losses)
        self.survived += tormentor.survived + notes.seen
        self.survived.update(rounds=1, writes=len(notes.writes), reads=len(notes.reads))
        return wrong

    def heal(self, due: float) -> None:
        """Wait until then, and do what heals."""
        time.sleep(max(0.0, due - now()))
        for _ in range(2):
            unread.heal()
            deadline = now() + PATIENCE
            while read_counter(unread).phase == Phase.WALKING:  # a flusher was killed with a page
                assert now() < deadline
                time.sleep(1)
                unread.heal()
            unread.flush()

    def rows(self, condition: Q) -> dict[Any, int]:
        found = Sum(unread.sum) if unread.sum else Count("pk")
        rows = Notification.objects.filter(condition)
        return {user: int(rows.for_user(user).aggregate(found=found)["found"] or 0) for user in self.users}

    def differences(self, sums: Numbers) -> list[str]:
        rows = self.rows(unread.q)
        stored = dict(UserNotificationsCount.objects.values_list("pk", "unread_count"))
        seen = {
            "triggers": {user: sums[truth.owner_name(user)] for user in self.users},
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
        status = read_counter(unread)
        if status.waiting or status.skipped or status.wrong or not is_ready():
            wrong.append(f"left over: {status}")
        return wrong

    def story(self, tormentor: Tormentor, wrong: list[str]) -> str:
        about = f"round {self.name}, seed {self.seed}, {self.entries}: {len(wrong)} wrong"
        events = [f"{when:.6f} {event}" for when, event in tormentor.events[-60:]]
        return "\n".join([about, *wrong[:20], "", *events, "", tormentor.site.tracebacks.read_text()])
