"""docs/benchmarks.md and its appendix have a place for every benchmark, and no figures of their own."""

import os

import pytest

from benchmarks.__main__ import BLOCK, COLLECTED, PAGES, QUESTIONS, fill
from benchmarks.bench import Race, Report, matrix, number, race, time
from tests.budgets import operations_table

pytestmark = pytest.mark.once


def test_every_benchmark_has_its_place() -> None:
    places = [name for page in PAGES for _, name, _, _ in BLOCK.findall(page.read_text())]
    assert sorted(places) == sorted([*QUESTIONS, *COLLECTED])


def test_the_budgets_are_those_of_the_tests() -> None:
    page = PAGES[1].read_text()
    assert page.partition("<!-- budgets -->\n\n")[2].startswith(operations_table() + "\n\n<!-- end -->")


def test_a_page_is_filled_twice_alike() -> None:
    page = "before <!-- measured: a -->\n<!-- end --> <!-- measured: b -->\nold\n<!-- end --> after"
    once = fill(page, {"a": "1 µs"})
    assert "<!-- measured: a -->\n\n1 µs\n\n<!-- end -->" in once
    assert "<!-- measured: b -->\n\nNot measured in this run.\n\n<!-- end -->" in once  # no figure of another
    assert fill(once, {"a": "1 µs"}) == once
    assert "2 µs\n\n<!-- end --> after" in fill(once, {"b": "2 µs"}, keep=True)
    assert "1 µs" in fill(once, {"b": "2 µs"}, keep=True)


def test_ratios_are_those_of_each_round() -> None:
    race = Race({"this app": [1e-3, 2e-3, 4e-3], "other": [2e-3, 6e-3, 4e-3], "limit: least": [1e-4, 1e-4, 1e-4]})
    assert race.ratios("other") == [2, 3, 1]
    assert race.cell("other") == "4.00 ms, 2.00×"
    assert matrix({"": race}).count("\n") == 4


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00000123, "1.23 µs"), (0.000128, "128 µs"), (0.0099, "9.90 ms"), (1.5, "1.50 s"), (1234.5, "1,234 s")],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert time(seconds) == text
    assert number(0) == "0"
