"""The page about deployments: while a site moves to another Redis, its old and new processes count everything."""

import multiprocessing
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from django.core.management import call_command

from notifications_counter.counters import unread
from notifications_counter.redis.client import read_all_owed
from notifications_counter.testing import isolated_counters
from tests.docs.test_docs import FENCE, page, section
from tests.support import assert_exact, create, entries, fork, is_ready, rows, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]

[COMMANDS] = [code for _, code in FENCE.findall(section(page("howto/deploy-a-change.md"), "Move to another Redis"))]


@contextmanager
def site(*users: Any) -> Iterator[None]:
    """The processes of a site, with the settings of now: one writes for each user, and the flusher runs."""
    is_over = multiprocessing.get_context("fork").Event()

    def write(user: Any) -> None:
        while not is_over.wait(0.01):
            create(user)
            least = rows(user)
            assert least <= unread.count(user) <= rows(user)
        read_all_owed()

    def flush() -> None:
        while not is_over.wait(0.1):
            call_command("flush_counters", verbosity=0)

    with ExitStack() as processes:
        for work in (*(partial(write, user) for user in users), flush):
            processes.enter_context(fork(work))
        processes.callback(is_over.set)
        yield


@pytest.mark.parametrize("what", ["LOCATION", "KEY_PREFIX"])
def test_a_move(what, healed, make_user, use, server, monkeypatch):
    for module in ("buffer.buffer", "upkeep.phases"):
        monkeypatch.setattr(f"notifications_counter.{module}.OFF_SECONDS", 1)
    old, both, new = users = [make_user() for _ in range(3)]

    def wait_for_writes(*users: Any) -> None:
        enough = {user: rows(user) + 3 for user in users}
        wait_until(lambda: all(rows(user) >= least for user, least in enough.items()))

    with ExitStack() as new_settings, ExitStack() as old_site, ExitStack() as new_site, entries(DEPLOY_SECONDS=3):
        old_site.enter_context(site(old, both))
        wait_for_writes(old, both)
        for prompt, command in re.findall("^(.) (.*)$", COMMANDS, re.MULTILINE):
            if prompt == "$":
                call_command(*command.removeprefix("python manage.py ").split())
                continue
            assert command.startswith("systemctl restart")
            if what == "LOCATION":
                use(server.url)
            else:
                new_settings.enter_context(isolated_counters(DEPLOY_SECONDS=3))
            new_site.enter_context(site(both, new))
            wait_for_writes(*users)
            old_site.close()
        wait_until(is_ready)
        wait_for_writes(both, new)
        new_site.close()
        assert_exact(*users, in_doubt=None)
