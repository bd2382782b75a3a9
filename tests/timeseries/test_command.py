import io
import signal
import subprocess
import sys

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

import servers
from notifications_counter.management.commands.clean_counters import Command
from notifications_counter.management.console import Stop
from notifications_counter.timeseries import TimeSeries, update_counter, update_counters
from tests.support import PATIENCE, redis_out_of_reach, wait_until

from .support import LONG_AGO, known

pytestmark = [pytest.mark.django_db, pytest.mark.once]


class Minutes(Stop):
    """Time flies; asked after so many passes, each of which a function comes before."""

    def __init__(self, passes: int, before=lambda number: None):
        super().__init__()
        self.passes, self.before, self.done, self.waited = passes, before, 0, []
        before(0)

    def wait(self, seconds):
        self.waited.append(seconds)
        self.done += 1
        if self.done == self.passes:
            self.ask(signal.SIGTERM, None)
        else:
            self.before(self.done)


def run(*arguments: str, **options) -> str:
    out = io.StringIO()
    call_command("clean_counters", *arguments, stdout=out, **options)
    return out.getvalue()


def test_it_says_what_it_did():
    update_counter("old", now=LONG_AGO)
    update_counter("old", now=LONG_AGO + 1)
    update_counter("new")
    assert run().startswith("Looked at 14 counters, removed 8 slices and 7 empty counters, 0.")
    assert run() == "Nothing to clean in 7 counters.\n"
    assert run(verbosity=0) == ""


def test_redis_out_of_reach():
    with redis_out_of_reach(), pytest.raises(CommandError, match=r"^Redis .*unavailable") as e:
        run()
    assert "\n" not in str(e.value)
    assert e.value.returncode == 1


def test_coarse_counters_are_due_less_often():
    command = Command(stdout=io.StringIO())
    command.verbosity = 1
    stop = Minutes(12, lambda number: update_counter("hits", now=LONG_AGO))
    command.loop(stop)
    # Before a pass there is everything; what is left after it was not due.
    assert known(TimeSeries()) == {f"{precision}:hits" for precision in (300, 3600, 18000, 86400)}
    assert all(50 < seconds <= 60 for seconds in stop.waited)
    # A line for each pass; 300 was due in the passes 0, 5 and 10, the coarser ones only in the first.
    lines = command.stdout.getvalue().splitlines()
    looked = [line.partition(",")[0].removeprefix("Looked at ") for line in lines]
    assert looked == ["7 counters", *["3 counters"] * 4, "4 counters", *["3 counters"] * 4, "4 counters", "3 counters"]


def test_a_loop_outlives_redis(caplog):
    with servers.redis() as server:
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        steps = {1: server.kill, 3: server.start}
        with override_settings(CACHES={"default": cache}, NOTIFICATIONS_COUNTER={"RETRY_AFTER": 0}):
            command = Command(stdout=io.StringIO())
            command.verbosity = 1
            command.loop(Minutes(5, lambda number: steps.get(number, lambda: None)()))
    first, last = (r.getMessage() for r in caplog.records if getattr(r, "event", "").startswith("run_"))
    assert first.startswith("Redis (cache 'default') is unavailable")
    assert first.endswith("(trying again every 60 s)")
    assert last == "clean_counters works again."


def test_a_signal_ends_the_loop_cleanly(child_environment):
    update_counter("old", now=LONG_AGO)
    command = [sys.executable, "-m", "django", "clean_counters", "--loop"]
    child = subprocess.Popen(
        command, env=child_environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_until(lambda: not known(TimeSeries()))
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=PATIENCE)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0
    assert output.startswith("Looked at 7 counters, removed 7 slices and 7 empty counters")
    assert output.count("\n") == 1


def test_a_signal_ends_a_pass_between_two_pages():
    update_counters({f"n{n}": 1 for n in range(50)}, now=LONG_AGO)

    class Interrupting(io.StringIO):
        def write(self, text):
            if "cleaned: 50 of" in text:
                signal.raise_signal(signal.SIGTERM)
            return super().write(text)

    out = Interrupting()
    call_command("clean_counters", stdout=out, verbosity=2)
    assert out.getvalue().splitlines()[-1].startswith("Looked at 50 counters, removed 50 slices and 50 empty counters")
    assert len(known(TimeSeries())) == 300
