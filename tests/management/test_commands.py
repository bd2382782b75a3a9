import io
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from unittest import mock

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import override_settings

import servers
from notifications_counter.counters import all_counters, unread
from notifications_counter.models import CounterState, Notification, UserNotificationsCount
from tests.support import PATIENCE, create, in_use, stored, unheard, wait_until
from tests.tasks.models import Task

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments, **options) -> list[str]:
    """The lines a command writes to stdout."""
    out = io.StringIO()
    call_command(*arguments, stdout=out, **options)
    return out.getvalue().splitlines()


def of_unread(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("unread:", "unread,"))]


# --------------------------------------------------------------------------------------------------- flush_counters
def test_flush_says_what_it_does(few_healed, make_user, caplog):
    users = [make_user() for _ in range(3)]
    assert run("flush_counters") == [f"{counter.name}: nothing to flush." for counter in all_counters()]
    for user in users:
        create(user, 2)
    with mock.patch("notifications_counter.upkeep.flush.OWNERS_PER_CHUNK", 2):
        lines = of_unread(run("flush_counters", verbosity=2))
    assert lines[:2] == ["unread: owners stored: 2 of 3", "unread: owners stored: 3 of 3"]
    assert lines[2].startswith("unread: flushed 3 owners, 0.")
    assert [stored(user) for user in users] == [2, 2, 2]
    create(users[0])
    with caplog.at_level("INFO"):
        assert of_unread(run("flush_counters")) == []  # the log says it
    assert "unread: 1 owner(s) flushed" in caplog.text


def test_what_makes_no_sense_is_refused(few_healed):
    for arguments in (["--interval", "-1"], ["--interval", "nan"], ["--loop", "--check"], ["--json"]):
        with pytest.raises(CommandError):
            call_command("flush_counters", *arguments)
    for place in ({"database": "nowhere"}, {"schema": "nowhere"}, {"schema": ""}):
        for command, how in (("flush_counters", {}), ("flush_counters", {"check": True}), ("recount_counters", {})):
            with pytest.raises(CommandError, match=f"No counter has its tables in '{next(iter(place.values()))}'"):
                call_command(command, **how, **place)
    bad = "x" * 101 if unread.pk_fields[0].get_internal_type() == "CharField" else "nobody"
    for options, error in (
        (["--counter", "unread", "--owner", bad], "is not a primary key.* Pass --owner"),
        (["--owner", "1"], "Add --counter"),
        (["--counter", "unraed"], "No counter is named 'unraed'; the counters are: "),
    ):
        with pytest.raises(CommandError, match=error):
            run("recount_counters", *options)
    with in_use("unread_by_kind"), pytest.raises(CommandError, match="This is no JSON list. Pass --owner"):
        run("recount_counters", "--counter", "unread_by_kind", "--owner", "me")
    cache = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    with override_settings(CACHES={"default": cache}), pytest.raises(CommandError, match="is not a django-redis cache"):
        run("flush_counters")


def test_tables_that_a_migration_is_to_add_are_told_without_a_traceback(few_healed, caplog):
    def rename(there: str, away: str) -> None:
        with connection.schema_editor() as editor:
            for table in (Notification._meta.db_table, Task._meta.db_table):
                editor.execute(f"ALTER TABLE {table}{there} RENAME TO {table}{away}")

    for counter in all_counters():
        counter.invalidate()  # so that each has to look at its rows
    rename("", "_away")
    try:
        with pytest.raises(CommandError, match="Run `manage.py makemigrations`"):
            run("flush_counters")
    finally:
        rename("_away", "")
    told = unread.buffer.status().failure  # for monitoring
    assert "Run `manage.py makemigrations`" in told
    assert "LINE 1" not in told
    assert not any(record.exc_info for record in caplog.records)


class Interrupting(io.StringIO):
    """Sends this process a signal when a line is written."""

    def __init__(self, line: str, signum: int):
        super().__init__()
        self.line, self.signum = line, signum

    def write(self, text):
        if text.startswith(self.line):
            os.kill(os.getpid(), self.signum)
        return super().write(text)


@pytest.mark.parametrize(("signum", "arguments"), [(signal.SIGTERM, []), (signal.SIGINT, ["--loop"])])
def test_a_signal_ends_the_flush(few_healed, make_user, signum, arguments):
    before = signal.getsignal(signum)
    users = [make_user() for _ in range(5)]
    for user in users:
        create(user)
    out = Interrupting("unread: owners stored: 2 of 5", signum)
    ends = nullcontext() if arguments else pytest.raises(CommandError, match="Nothing is lost; run the command")
    with mock.patch("notifications_counter.upkeep.flush.OWNERS_PER_CHUNK", 2), ends:
        call_command("flush_counters", *arguments, verbosity=2, stdout=out)
    assert unread.buffer.status().flushing == 5
    assert signal.getsignal(signum) is before
    run("flush_counters")
    assert [stored(user) for user in users] == [1] * 5


# ------------------------------------------------------------------------------------------------------------ --loop
@pytest.mark.once
@pytest.mark.slow
def test_loop_flushes_until_a_signal_and_outlives_redis(child_environment, tmp_path, make_user):
    user, log = make_user(), tmp_path / "log"
    command = [sys.executable, "-m", "django", "flush_counters", "--loop", "--interval", "0.05"]
    with servers.redis() as server, log.open("w") as output:
        caches = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}}
        child_environment["TEST_REDIS_URL"] = server.url
        child_environment.pop("PYTHONUNBUFFERED", None)  # what a command says must come without it
        with (
            override_settings(CACHES=caches),
            subprocess.Popen(command, env=child_environment, stdout=output, stderr=subprocess.STDOUT) as child,
        ):
            wait_until(lambda: len(CounterState.objects.exclude(mark="")) == len(all_counters()))
            create(user)
            wait_until(lambda: stored(user) == 1)
            server.kill()
            wait_until(lambda: "is trying again)" in log.read_text())
            server.start()
            wait_until(lambda: "flush_counters works again." in log.read_text())
            create(user)
            wait_until(lambda: stored(user) == 2 and "unread: flushed 1 owner, " in log.read_text())
            child.terminate()
            assert child.wait(PATIENCE) == 0
    text = log.read_text()
    assert "Flushing every 0.05 s, until Ctrl-C" in text
    assert "unread: walk complete" in text
    assert "nothing to flush" not in text
    assert text.count("is trying again") == 1
    assert "Traceback" not in text


# -------------------------------------------------------------------------------------------------- recount_counters


def test_a_recount_finds_owners_that_only_redis_knows(few_healed, make_user):
    """Their rows are gone, and nobody has stored their total yet."""
    user, other = make_user(), make_user()
    for each in (user, other):
        Notification.objects.bulk_create(Notification(user=each, title="x") for _ in range(150))
    assert unread.counts([user, other]) == {user.pk: 150, other.pk: 150}
    unheard(Notification.objects.filter(user=user).delete)
    assert of_unread(run("recount_counters", "--dry-run"))[-1] == "unread: compared 2 owners, 1 wrong."
    assert (unread.recount().owners, unread.count(user)) == (2, 0)


def test_recount_prints_each_wrong_count(few_healed, make_user):
    wrong, other = make_user(), make_user()
    for user in (wrong, other):
        create(user, 2)
    unread.flush()
    unheard(UserNotificationsCount.objects.update, unread_count=7)
    of_wrong, of_other = (f"unread: owner {user.pk}: 7 cached or stored, 2 rows (-5)." for user in (wrong, other))
    lines = of_unread(run("recount_counters", "--dry-run"))
    assert {*lines[:2]} == {of_wrong, of_other}
    assert lines[2:] == ["unread: compared 2 owners, 2 wrong."]
    assert stored(wrong) == 7
    with mock.patch("notifications_counter.upkeep.findings.MAX_DIFFERENCES", 1):
        assert of_unread(run("recount_counters", "--dry-run"))[1] == "unread: 1 more."
    assert run("recount_counters", "--counter", "unread", "--owner", str(wrong.pk)) == [
        of_wrong,
        "unread: compared 1 owner, 1 wrong. Their rows were counted.",
    ]
    assert (stored(wrong), stored(other)) == (2, 7)
    assert of_unread(run("recount_counters"))[0] == of_other
    assert stored(other) == unread.count(other) == 2
