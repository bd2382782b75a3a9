"""docs/benchmarks.md has a place for every benchmark."""

import pytest

from benchmarks.__main__ import BLOCK, COLLECTED, PAGE, QUESTIONS

pytestmark = pytest.mark.once


def test_every_benchmark_has_its_place() -> None:
    places = [name for _, name, _, _ in BLOCK.findall(PAGE.read_text())]
    assert sorted(places) == sorted([*QUESTIONS, *COLLECTED])
