"""docs/benchmarks.md and its appendix have a place for every benchmark."""

import pytest

from benchmarks.__main__ import BLOCK, COLLECTED, PAGES, QUESTIONS
from tests.budgets import operations_table

pytestmark = pytest.mark.once


def test_every_benchmark_has_its_place() -> None:
    places = [name for page in PAGES for _, name, _, _ in BLOCK.findall(page.read_text())]
    assert sorted(places) == sorted([*QUESTIONS, *COLLECTED])


def test_the_budgets_are_those_of_the_tests() -> None:
    page = PAGES[1].read_text()
    assert page.partition("<!-- budgets -->\n\n")[2].startswith(operations_table() + "\n\n<!-- end -->")
