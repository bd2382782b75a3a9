"""What docs/benchmarks.md shows is what a benchmark prints."""

import pytest

from benchmarks.__main__ import BLOCK, COLLECTED, PAGE, QUESTIONS

pytestmark = pytest.mark.once


def test_every_figure_is_measured() -> None:
    text = PAGE.read_text()
    places = [name for _, name, _, _ in BLOCK.findall(text)]
    assert set(places) <= {*QUESTIONS, *COLLECTED}
    assert len(places) == len(set(places)) == text.count("<!-- measured: ")
