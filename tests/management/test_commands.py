import io
import os
import signal
import socket
import subprocess
import sys
from unittest import mock

import pytest
from django.core import checks
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import override_settings

import servers
from notifications_counter.counters import all_counters, unread
from notifications_counter.models import CounterShard, Notification, UserNotificationsCount
from tests.support import PATIENCE, stored, unheard, wait_until

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
    for user in users:
        notify(user, 2)
    with mock.patch("notifications_counter.counters.CHUNK", 2):
        lines = of_unread(run("flush_counters", verbosity=2))
    assert lines[:2] == ["unread: owners flushed: 2 of 3", "unread: owners flushed: 3 of 3"]
    assert lines[2].startswith("unread: flushed 3 owners, 0.")
    assert [stored(user) for user in users] == [2, 2, 2]


def test_no_database_is_asked_before_the_command_can_say_that_it_is_out_of_reach(few_healed, monkeypatch):
    asked = []
    monkeypatch.setattr(checks, "run_checks", lambda databases, **_: asked.append(databases) or [])
    call_command("flush_counters", skip_checks=False)
    assert asked == [[]]


def test_what_makes_no_sense_is_refused(few_healed):
    for arguments in (["--interval", "-1"], ["--interval", "nan"], ["--loop", "--check"], ["--json"]):
        with pytest.raises(CommandError):
            call_command("flush_counters", *arguments)
    for place in ({"database": "nowhere"}, {"schema": "nowhere"}, {"schema": ""}):
        for command, how in (("flush_counters", {}), ("flush_counters", {"check": True}), ("recount_counters", {})):
            with pytest.raises(CommandError, match=f"No counter has its tables in '{next(iter(place.values()))}'"):
                call_command(command, **how, **place)
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


@pytest.mark.parametrize(("signum", "arguments"), [(signal.SIGTERM, []), (signal.SIGINT, ["--loop"])])
def test_a_signal_ends_the_flush_between_two_chunks(few_healed, make_user, signum, arguments):
    before = signal.getsignal(signum)
    users = [make_user() for _ in range(5)]
    for user in users:
        notify(user)
    out = Interrupting("unread: owners flushed: 2 of 5", signum)
    with mock.patch("notifications_counter.counters.CHUNK", 2):
        call_command("flush_counters", *arguments, verbosity=2, stdout=out)
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


@pytest.mark.once
def test_loop_flushes_until_a_signal_and_outlives_redis(start, make_user):
    user = make_user()
    with servers.redis() as server:
        caches = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}}
        with override_settings(CACHES=caches):
            child = start("flush_counters", "--loop", "--interval", "0.05", TEST_REDIS_URL=server.url)
            wait_until(lambda: len(CounterShard.objects.exclude(mark="")) == len(all_counters()))
            notify(user)
            wait_until(lambda: stored(user) == 1)
            server.kill()
            child.wait_for("(trying again every 0.05 s)")
            server.start()
            child.wait_for("flush_counters works again.")
            notify(user)
            wait_until(lambda: stored(user) == 2)
            assert child.end(signal.SIGTERM) == 0
    text = child.log.read_text()
    assert "unread: flushed 1 owner, " in text
    assert "nothing to flush" not in text
    assert text.count("(trying again") == 1
    assert "Traceback" not in text


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Others have no such setting of a database.")
def test_loop_outlives_a_read_only_database(start, few_healed, make_user):
    user = make_user()
    notify(user)
    this = f"ALTER DATABASE {connection.ops.quote_name(connection.settings_dict['NAME'])}"
    with connection.cursor() as cursor:
        cursor.execute(f"{this} SET default_transaction_read_only = on")
        try:
            child = start("flush_counters", "--loop", "--interval", "0.05")
            child.wait_for("in a read-only transaction (trying again every 0.05 s)")
        finally:
            cursor.execute(f"{this} RESET default_transaction_read_only")
    child.wait_for("flush_counters works again.")
    wait_until(lambda: stored(user) == 1)
    assert child.end(signal.SIGTERM) == 0
    assert "Traceback" not in child.log.read_text()


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


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (CounterShard, ["flush_counters", "--check"]),
        (UserNotificationsCount, ["flush_counters"]),
        (UserNotificationsCount, ["recount_counters"]),
    ],
)
def test_a_migration_that_was_forgotten(few_healed, make_user, model, arguments):
    notify(make_user())
    with connection.schema_editor() as editor:
        editor.delete_model(model)
    try:
        with pytest.raises(CommandError, match=rf"{model._meta.db_table}.* Run `manage.py makemigrations`"):
            run(*arguments)
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(model)


# -------------------------------------------------------------------------------------------------- recount_counters
def test_recount_prints_each_wrong_count(few_healed, make_user):
    wrong, other = make_user(), make_user()
    for user in (wrong, other):
        notify(user, 2)
    unread.flush()
    unheard(UserNotificationsCount.objects.update, unread_count=7)
    of_wrong, of_other = (f"unread: owner {user.pk}: count 7, rows 2 (-5)." for user in (wrong, other))
    lines = of_unread(run("recount_counters", "--dry-run"))
    assert {*lines[:2]} == {of_wrong, of_other}
    assert lines[2:] == ["unread: compared 2 owners, 2 wrong."]
    assert stored(wrong) == 7
    assert run("recount_counters", "--counter", "unread", "--owner", str(wrong.pk)) == [
        of_wrong,
        "unread: compared 1 owner, 1 wrong. Their rows were counted.",
    ]
    assert (stored(wrong), stored(other)) == (2, 7)
    assert of_unread(run("recount_counters"))[0] == of_other
    assert stored(other) == unread.count(other) == 2


def test_recount_says_what_is_wrong_with_its_options(few_healed):
    bad = "x" * 101 if unread.key_fields[0].get_internal_type() == "CharField" else "nobody"
    for options, error in (
        (["--counter", "unread", "--owner", bad], "is not a primary key.* Pass --owner"),
        (["--owner", "1"], "Add --counter"),
        (["--counter", "unraed"], "No counter is named 'unraed'; the counters are: "),
    ):
        with pytest.raises(CommandError, match=error):
            run("recount_counters", *options)
    assert unread.status()[0].status.aside == 0


def test_recount_removes_totals_of_users_that_are_gone(few_healed, make_user):
    user, gone = make_user(), make_user()
    notify(gone)
    unheard(UserNotificationsCount.objects.create, pk=user.pk)
    unread.flush()
    gone_key = gone.pk
    gone.delete()
    unread.flush()
    assert UserNotificationsCount.objects.get(pk=gone_key).unread_count == 0
    run("recount_counters", "--dry-run")
    assert UserNotificationsCount.objects.filter(pk=gone_key).exists()
    run("recount_counters")
    assert list(UserNotificationsCount.objects.values_list("pk", flat=True)) == [user.pk]
