import io
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from django.core import checks
from django.core.management import CommandError, call_command
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test.utils import override_settings

import servers
from notifications_counter.checks.tables import explain
from notifications_counter.counters import Counter, all_counters, counter_named, unread
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.management.console import OutageLog, Stop
from notifications_counter.models import CounterShard, Notification, UserNotificationsCount
from notifications_counter.upkeep.places import LocalCounter, Place
from tests.support import PATIENCE, entries, redis_out_of_reach, stored, unheard, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments, **options) -> list[str]:
    """The lines a command writes to stdout."""
    out = io.StringIO()
    call_command(*arguments, stdout=out, **options)
    return out.getvalue().splitlines()


def of_unread(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("unread:", "unread,"))]


def notify(user, times: int = 1) -> None:
    Notification.objects.bulk_create([Notification(user=user, title="x") for _ in range(times)])


# --------------------------------------------------------------------------------------------------- flush_counters
def test_flush_says_what_it_does(few_healed, make_user):
    users = [make_user() for _ in range(3)]
    assert run("flush_counters") == [f"{counter.name}: nothing to flush." for counter in all_counters()]
    unread.buffers[0].announce("intent", ["7"])
    assert of_unread(run("flush_counters")) == [
        "unread: nothing flushed; for the next runs: 0 owners, 1 intent in flight."
    ]
    for user in users:
        notify(user, 2)
    lines = of_unread(run("flush_counters", verbosity=2, chunk_size=2))
    assert re.fullmatch(
        r"unread, shard 0: generation \w{12}, pending 3, flushing 0, in flight 1, set aside 0", lines[0]
    )
    assert lines[1:3] == ["unread: owners flushed: 2 of 3", "unread: owners flushed: 3 of 3"]
    assert lines[3].startswith("unread: flushed 3 owners, 0.")
    assert [stored(user) for user in users] == [2, 2, 2]


def test_flush_recovers_a_new_redis(make_user):
    user = make_user()
    with redis_out_of_reach():
        notify(user, 2)
    lines = of_unread(run("flush_counters", verbosity=2))
    assert "generation none" in lines[0]
    assert lines[1] == "unread: owners compared: 1"
    assert lines[-1].startswith("unread: flushed 1 owner, ")
    assert stored(user) == 2


def test_commands_say_what_they_wait_for(make_user):
    """Until then, nothing is wrong: rows are counted."""
    notify(make_user())
    reason = (
        "The counter is new, or its declaration has changed. Rows are counted until all processes have had 90 s "
        "(DEPLOY_SECONDS) to be replaced."
    )
    with entries(DEPLOY_SECONDS=90):
        assert of_unread(run("flush_counters")) == [f"unread: nothing flushed. {reason}"]
        assert of_unread(run("recount_counters"))[-1] == f"unread: {reason}"
    assert of_unread(run("flush_counters"))[0].startswith("unread: flushed 1 owner")


def test_flush_says_that_a_column_is_missing(few_healed):
    table = connection.ops.quote_name(Notification._meta.db_table)
    with pytest.raises(DatabaseError) as raised, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SELECT minutes FROM {table}")
    assert re.search("The statement was: SELECT minutes .* – Run `manage.py makemigrations`", explain(raised.value))


@pytest.mark.parametrize("command", ["flush_counters", "recount_counters", "clean_counters"])
def test_no_database_is_asked_before_the_command_can_say_that_it_is_out_of_reach(few_healed, monkeypatch, command):
    asked = []
    monkeypatch.setattr(checks, "run_checks", lambda databases, **_: asked.append(databases) or [])
    call_command(command, skip_checks=False)
    assert asked == [[]]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--chunk-size", "0"],
        ["--interval", "-1"],
        ["--interval", "inf"],
        ["--interval", "nan"],
        ["--loop", "--check"],
    ],
)
def test_flush_refuses_what_makes_no_sense(arguments):
    with pytest.raises(CommandError):
        call_command("flush_counters", *arguments)


@pytest.mark.parametrize("option", ["database", "schema"])
@pytest.mark.parametrize("name", ["nowhere", ""])
def test_a_place_that_does_not_exist_is_not_well(few_healed, option, name):
    for command, how in (("flush_counters", {}), ("flush_counters", {"check": True}), ("recount_counters", {})):
        with pytest.raises(CommandError, match=f"No counter has its tables in '{name}'"):
            call_command(command, **how, **{option: name})


def test_flush_names_a_cache_that_is_not_redis():
    cache = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    with override_settings(CACHES={"default": cache}), pytest.raises(CommandError, match="is not a django-redis cache"):
        run("flush_counters")


class Interrupting(io.StringIO):
    """Sends this process a signal when a line is written."""

    def __init__(self, line: str, signum: int):
        super().__init__()
        self.line, self.signum = line, signum

    def write(self, text):
        if text.startswith(self.line):
            os.kill(os.getpid(), self.signum)
        return super().write(text)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("arguments", [[], ["--loop"]])
def test_a_signal_ends_the_flush_between_two_chunks(few_healed, make_user, signum, arguments):
    before = signal.getsignal(signum)
    users = [make_user() for _ in range(5)]
    for user in users:
        notify(user)
    out = Interrupting("unread: owners flushed: 2 of 5", signum)
    call_command("flush_counters", *arguments, chunk_size=2, verbosity=2, stdout=out)
    lines = out.getvalue().splitlines()
    assert lines[-1].startswith("unread: flushed 1 owner, ")
    assert unread.status()[0].status.flushing == 5
    assert signal.getsignal(signum) is before
    run("flush_counters")
    assert [stored(user) for user in users] == [1] * 5


# ------------------------------------------------------------------------------------------------------------ --loop
class Child:
    """A command in a process of its own, whose output can be waited for."""

    def __init__(self, environment: dict[str, str], tmp_path, *arguments: str):
        self.log = tmp_path / "log"
        environment.pop("PYTHONUNBUFFERED", None)  # what a command says must come without it
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        with self.log.open("w") as log:
            command = [sys.executable, "-m", "django", *arguments]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        signal.signal(signal.SIGINT, before)

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.log.read_text() or self.process.poll() is not None)
        assert text in self.log.read_text()

    def end(self, signum: int) -> int:
        self.process.send_signal(signum)
        return self.process.wait(PATIENCE)


@pytest.fixture
def start(child_environment, tmp_path):
    children = []

    def start(*arguments: str, **environment: str) -> Child:
        children.append(Child(child_environment | environment, tmp_path, *arguments))
        return children[-1]

    yield start
    for child in children:
        child.process.kill()
        child.process.wait()


def test_loop_flushes_until_a_signal_wakes_it(start, few_healed, make_user):
    user = make_user()
    child = start("flush_counters", "--loop", "--interval", "0.05")
    for times in (1, 2):
        notify(user)
        wait_until(lambda times=times: stored(user) == times)
    assert child.end(signal.SIGTERM) == 0
    text = child.log.read_text()
    assert text.count("unread: flushed 1 owner, ") == 2
    assert "nothing" not in text


@pytest.mark.once
def test_a_signal_right_before_the_wait():
    """It does not wake the command, which looks again after a second."""
    stop, began = Stop(), time.monotonic()
    missed = threading.Timer(0.1, lambda: setattr(stop, "_asked", True))
    missed.start()
    stop.wait(600)
    missed.join()
    assert time.monotonic() - began < 300


@pytest.mark.once
def test_a_signal_does_not_wait_for_the_end_of_the_interval(start, few_healed, make_user):
    notify(make_user())
    child = start("flush_counters", "--loop", "--interval", "3600")
    child.wait_for("unread: flushed")
    assert child.end(signal.SIGTERM) == 0


@pytest.mark.once
def test_each_database_that_is_out_of_reach_is_logged_once(caplog):
    outages = OutageLog("flush_counters", 5)
    counters = [LocalCounter(f"{name} ({alias})", unread, Place(alias)) for alias in "ab" for name in ("one", "two")]
    a, b = counters[:2], counters[2:]
    for down in (a, counters, b, [], counters):
        for local in down:
            outages.failed(OperationalError("no route to host"), local)
            outages.failed(BufferUnavailable("timeout"), local)
        outages.end_run()
    about = [(record.levelname, getattr(record, "counter", None), record.getMessage()) for record in caplog.records]
    lost = "one (%s): no route to host (trying again every 5 s)"
    redis = ("ERROR", None, "timeout (trying again every 5 s)")
    first, second = ("ERROR", "one (a)", lost % "a"), ("ERROR", "one (b)", lost % "b")
    assert about == [first, redis, second, ("WARNING", None, "flush_counters works again."), first, redis, second]


@pytest.mark.once
def test_loop_outlives_redis(start, make_user):
    with servers.redis() as server:
        caches = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}}
        with override_settings(CACHES=caches):
            child = start("flush_counters", "--loop", "--interval", "0.05", TEST_REDIS_URL=server.url)
            wait_until(lambda: len(CounterShard.objects.exclude(mark="")) == len(all_counters()))
            server.kill()
            child.wait_for("(trying again every 0.05 s)")
            server.start()
            child.wait_for("flush_counters works again.")
            user = make_user()
            notify(user)
            wait_until(lambda: stored(user) == 1)
            assert child.end(signal.SIGTERM) == 0
    text = child.log.read_text()
    assert text.count("(trying again") == 1
    assert "Traceback" not in text


@pytest.mark.skipif(connection.vendor != "sqlite", reason="makes a database that is unreachable for a moment")
def test_loop_outlives_the_database(start, few_healed, make_user, tmp_path):
    user = make_user()
    notify(user)
    missing = tmp_path / "missing"
    name = str(missing / "tests.sqlite3")
    child = start("flush_counters", "--loop", "--interval", "0.05", "--skip-checks", TEST_DATABASE_NAME=name)
    child.wait_for("unread: unable to open database file (trying again every 0.05 s)")
    wanted = connection.settings_dict["NAME"]
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "tests.sqlite3").symlink_to(wanted)
    (tmp_path / "found").rename(missing)
    child.wait_for("flush_counters works again.")
    wait_until(lambda: stored(user) == 1)
    assert child.end(signal.SIGTERM) == 0
    assert "Traceback" not in child.log.read_text()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="PostgreSQL calls it an internal error.")
def test_loop_outlives_a_read_only_database(start, few_healed, make_user):
    user = make_user()
    notify(user)
    this = f"ALTER DATABASE {connection.ops.quote_name(connection.settings_dict['NAME'])}"
    with connection.cursor() as cursor:
        cursor.execute(f"{this} SET default_transaction_read_only = on")
        try:
            child = start("flush_counters", "--loop", "--interval", "0.05")
            child.wait_for("in a read-only transaction. The statement was: ")
        finally:
            cursor.execute(f"{this} RESET default_transaction_read_only")
    child.wait_for("flush_counters works again.")
    wait_until(lambda: stored(user) == 1)
    assert child.end(signal.SIGTERM) == 0
    assert "Traceback" not in child.log.read_text()


@pytest.mark.once
def test_a_large_batch_has_a_bar_on_a_terminal(child_environment, few_healed, make_user):
    pytest.importorskip("rich")
    for _ in range(3):
        notify(make_user())
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "django", "flush_counters", "--chunk-size", "1"]
    environment = {**child_environment, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, env=environment, stdout=inside, stderr=inside)
    os.close(inside)
    output = b""
    try:
        while chunk := os.read(terminal, 65536):
            output += chunk
    except OSError:  # Linux says so when the other end is closed
        pass
    finally:
        os.close(terminal)
    assert process.wait(PATIENCE) == 0
    text = output.decode()
    assert "unread: owners flushed" in text
    assert "2/3" in text
    assert "unread: flushed 3 owners" in text


# ----------------------------------------------------------------------------------------------------------- --check
@pytest.mark.once
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_signal_ends_a_check_that_waits(start, signum, status):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        child = start("flush_counters", "--check", TEST_REDIS_URL=f"redis://127.0.0.1:{port}/0")
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1)
            assert child.end(signum) == status


@pytest.mark.once
def test_a_command_ends_when_nobody_reads_on(child_environment, few_healed):
    """As those before `head` in a shell."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "django", "flush_counters"]
    with open(writer) as stdout:
        result = subprocess.run(command, env=child_environment, stdout=stdout, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.once
@pytest.mark.parametrize("arguments", [["flush_counters"], ["flush_counters", "--check"], ["recount_counters"]])
def test_an_outage_is_said_once(child_environment, arguments):
    environment = {**child_environment, "TEST_REDIS_URL": f"redis://127.0.0.1:{servers.free_port()}/0"}
    command = [sys.executable, "-m", "django", *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert "is unreachable" in result.stderr
    assert result.stderr.count("Redis (cache") == 1


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (CounterShard, ["flush_counters"]),
        (CounterShard, ["flush_counters", "--check"]),
        (CounterShard, ["recount_counters"]),
        (UserNotificationsCount, ["flush_counters"]),
        (UserNotificationsCount, ["recount_counters"]),
    ],
)
def test_a_migration_that_was_forgotten(few_healed, make_user, model, arguments):
    notify(make_user())
    with connection.schema_editor() as editor:
        editor.delete_model(model)
    try:
        missing = f"tables are missing: {model._meta.db_table}. Run `manage.py makemigrations`"
        with pytest.raises(CommandError, match=missing):
            run(*arguments)
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(model)


SLOW = {
    "postgresql": ["SET statement_timeout = '50ms'", "SELECT pg_sleep(60)", "SET statement_timeout = 0"],
    "mysql": ["SET max_statement_time = 0.05", "SELECT SLEEP(60)", "SET max_statement_time = 0"],
    "sqlite": ["SELECT 1", "SELECT missing", "SELECT 1"],
}[connection.vendor]


@pytest.mark.parametrize("arguments", [["flush_counters"], ["flush_counters", "--check"]])
def test_a_statement_that_fails_is_named(few_healed, monkeypatch, caplog, arguments):
    """With the counter, and what to do if it takes too long."""
    before, statement, after = SLOW

    def fail(counter, *args, **kwargs):
        with connection.cursor() as cursor:
            cursor.execute(before)
            try:
                cursor.execute(statement)
            finally:
                cursor.execute(after)

    monkeypatch.setattr(Counter, "heal", fail)
    monkeypatch.setattr(Counter, "status", fail)
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    text = str(caught.value)
    assert re.match(r"(unread|Database 'default', counter 'unread'): ", text)
    assert f". The statement was: {statement}" in text
    assert ("a longer time limit" in text) == (connection.vendor != "sqlite")


# -------------------------------------------------------------------------------------------------- recount_counters
def corrupt(user, count: int) -> None:
    unheard(UserNotificationsCount.objects.filter(pk=user.pk).update, unread_count=count)


@pytest.fixture
def wrong(few_healed, make_user):
    """A user with two unread notifications, and a stored count of seven."""
    user = make_user()
    notify(user, 2)
    unread.flush()
    corrupt(user, 7)
    return user


def test_recount_prints_each_wrong_count(wrong):
    difference = f"unread: owner {wrong.pk}: count 7, rows 2 (-5)."
    assert of_unread(run("recount_counters", "--dry-run")) == [difference, "unread: compared 1 owner, 1 wrong."]
    assert stored(wrong) == 7
    assert of_unread(run("recount_counters")) == [
        difference,
        "unread: compared 1 owner, 1 wrong. Their rows were counted.",
    ]
    assert stored(wrong) == unread.count(wrong) == 2


def test_recount_of_everyone_is_of_every_counter(few_healed):
    assert run("recount_counters") == [f"{c.name}: compared 0 owners, 0 wrong." for c in all_counters()]


def test_recount_of_users(wrong, make_user):
    other = make_user()
    notify(other)
    unread.flush()
    corrupt(other, 5)
    assert run("recount_counters", "--owner", str(wrong.pk)) == [
        f"unread: owner {wrong.pk}: count 7, rows 2 (-5).",
        "unread: compared 1 owner, 1 wrong. Their rows were counted.",
        "Other counters were not recounted: open_tasks. Name them by --counter.",
    ]
    lines = run("recount_counters", "--owner", str(wrong.pk), "--owner", str(other.pk), "--counter", "unread")
    assert lines[0] == f"unread: owner {other.pk}: count 5, rows 1 (-4)."
    assert stored(other) == 1
    with pytest.raises(CommandError, match="No counter is named 'unraed'; the counters are: "):
        run("recount_counters", "--counter", "unraed")


@pytest.mark.parametrize("command", ["flush_counters", "recount_counters"])
def test_a_command_is_silent_if_told_so(wrong, command):
    notify(wrong)
    assert run(command, verbosity=0) == []


def test_recount_says_what_is_wrong_with_a_key(few_healed):
    bad = "x" * 101 if unread.key_fields[0].get_internal_type() == "CharField" else "nobody"
    with pytest.raises(CommandError, match="is not a primary key.* Pass --owner"):
        run("recount_counters", "--owner", bad)
    assert unread.status()[0].status.aside == 0


@pytest.mark.parametrize("named", ["unread", "unread_by_kind"])
def test_recount_says_that_there_is_no_such_user(with_kinds, make_user, named):
    user, other = make_user(), make_user()
    counter = counter_named(named)
    key, other_key = (str(counter.key((each, "a") if counter.has_several_columns else each)) for each in (user, other))
    user.delete()
    lines = run("recount_counters", "--owner", key, "--owner", other_key, "--counter", named)
    who = user._meta.verbose_name
    assert lines[0] == f"{named}: no {who} has the primary key {key}. Whatever it left behind is compared."
    assert len(lines) == 2


# ---------------------------------------------------------------------------------------------------- totals to remove
@pytest.fixture
def gone(few_healed, make_user):
    """The key of a user that is gone, with a total of zero."""
    user = make_user()
    key = user.pk
    notify(user, 2)
    unread.flush()
    user.delete()
    unread.flush()
    assert UserNotificationsCount.objects.get(pk=key).unread_count == 0
    return key


def test_recount_removes_totals_of_users_that_are_gone(gone, make_user):
    user = make_user()
    UserNotificationsCount.objects.create(pk=user.pk)
    unread.flush()
    run("recount_counters", "--dry-run")
    assert UserNotificationsCount.objects.filter(pk=gone).exists()
    run("recount_counters")
    assert list(UserNotificationsCount.objects.values_list("pk", flat=True)) == [user.pk]
