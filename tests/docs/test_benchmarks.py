"""docs/benchmarks.md and its appendix have a place for every benchmark, and no figures of their own."""

import math
import os

import pytest

from benchmarks.__main__ import BLOCK, COLLECTED, PAGES, QUESTIONS, fill
from benchmarks.bench import Race, Report, exponent, number, race, time

pytestmark = pytest.mark.once


def test_every_benchmark_has_its_place() -> None:
    places = [name for page in PAGES for _, name, _, _ in BLOCK.findall(page.read_text())]
    assert sorted(places) == sorted([*QUESTIONS, *COLLECTED])


def test_a_page_is_filled_twice_alike() -> None:
    page = "before <!-- measured: a -->\n<!-- end --> <!-- measured: b -->\nold\n<!-- end --> after"
    once, unknown = fill(page, {"a": "1 µs", "c": "2 µs"})
    assert "<!-- measured: a -->\n\n1 µs\n\n<!-- end -->" in once
    assert "<!-- measured: b -->\n\nNot measured in this run.\n\n<!-- end -->" in once  # no figure of another
    assert unknown == {"c"}
    assert fill(once, {"a": "1 µs"})[0] == once


def test_ratios_are_those_of_each_round() -> None:
    race = Race({"this app": [1e-3, 2e-3, 4e-3], "other": [2e-3, 6e-3, 4e-3], "limit: least": [1e-4, 1e-4, 1e-4]})
    assert race.ratios("other") == [2, 3, 1]
    assert race.cell("other") == "4.00 ms, 2.00×"
    report = Report()
    assert report.matrix("reading", {"": race}).count("\n") == 4
    assert report.losses == []


def test_a_clear_loss_is_noted_and_a_limit_is_none() -> None:
    race = Race({"this app": [4.0, 4.0, 4.0], "other": [2.0, 2.0, 2.0], "limit: least": [1.0, 1.0, 1.0]})
    report = Report()
    report.matrix("writing", {10: race, 20: race}, "users:")
    assert report.losses == [("writing", "users: 10", "other", 0.5), ("writing", "users: 20", "other", 0.5)]


def test_the_page_begins_with_ratios() -> None:
    report = Report()
    report.short["writing"] = Race({"this app": [1e-3, 2e-3, 4e-3], "other": [2e-3, 6e-3, 4e-3]})
    text = report.answer(["other", "nobody"]).splitlines()[-1]
    assert [cell.strip() for cell in text.split("|")[1:-1]] == ["writing", "2.00 ms", "2.00×", ""]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no cores to choose from")
def test_a_race_has_a_core_of_its_own_and_gives_it_back() -> None:
    cores = os.sched_getaffinity(0)
    seen = []
    race({"this app": lambda: seen.append(os.sched_getaffinity(0))}, rounds=2)
    assert seen == [{min(cores)}] * 3
    assert os.sched_getaffinity(0) == cores


def test_an_exponent_of_one_is_linear() -> None:
    assert math.isclose(exponent({10: 0.2, 100: 2.0, 1000: 20.0}), 1)
    assert math.isclose(exponent({10: 1.0, 100: 100.0}), 2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00000123, "1.23 µs"), (0.000128, "128 µs"), (0.0099, "9.90 ms"), (1.5, "1.50 s"), (1234.5, "1,234 s")],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert time(seconds) == text
    assert number(0) == "0"
