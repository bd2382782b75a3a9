import io
import itertools
import signal

import pytest
from django.core.management import CommandError, call_command

from notifications_counter.management.commands import clean_counters
from notifications_counter.management.commands.clean_counters import Command
from notifications_counter.management.console import Stop
from notifications_counter.timeseries import TimeSeries, update_counter, update_counters
from tests.support import redis_out_of_reach

from .support import LONG_AGO, known

pytestmark = [pytest.mark.django_db, pytest.mark.once]


class Minutes(Stop):
    """Time flies, for twelve passes, before each of which there is something to clean at every precision."""

    def __init__(self):
        super().__init__()
        self.waited = []
        update_counter("hits", now=LONG_AGO)

    def wait(self, seconds):
        self.waited.append(seconds)
        if len(self.waited) == 12:
            self.ask(signal.SIGTERM, None)
        else:
            update_counter("hits", now=LONG_AGO)


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
    stop = Minutes()
    command.loop(stop)
    # What is left after the last pass was not due.
    assert known(TimeSeries()) == {f"{precision}:hits" for precision in (300, 3600, 18000, 86400)}
    assert all(50 < seconds <= 60 for seconds in stop.waited)
    # A line for each pass; 300 was due in the passes 0, 5 and 10, the coarser ones only in the first.
    lines = command.stdout.getvalue().splitlines()
    looked = [line.partition(",")[0].removeprefix("Looked at ") for line in lines]
    assert looked == ["7 counters", *["3 counters"] * 4, "4 counters", *["3 counters"] * 4, "4 counters", "3 counters"]


def test_it_rests_after_a_pass_that_took_longer_than_a_minute(monkeypatch):
    monkeypatch.setattr(clean_counters, "monotonic", itertools.count(0, 70).__next__)
    command, stop = Command(stdout=io.StringIO()), Minutes()
    command.verbosity = 1
    command.loop(stop)
    assert set(stop.waited) == {1}


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
