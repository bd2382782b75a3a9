"""Bar charts as SVG, without a script or a style of their own: what stands where. The template
``admin/notifications_counter/dashboard/chart.html`` draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from django.utils import numberformat
from django.utils.formats import get_format

WIDTH, HEIGHT = 360, 160
"""Units of the SVG; it is shown as wide as there is room."""

TOP, BOTTOM, RIGHT = 20, 138, 356
"""The field of the bars; its left end is where the labels of the vertical axis end."""

LETTER = 6.2
"""Width of a digit in an axis label."""

LINES = 4
"""Lines of the grid above zero, at most."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slice of time: what it is called, its label on the axis if it has one, and how many there were in it."""

    name: str
    label: str
    value: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in its slot of the axis. All lengths are texts, because templates write numbers as people do."""

    slot: str
    slot_width: str
    x: str
    width: str
    y: str
    height: str
    text: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A label of an axis, and where."""

    at: str
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one series. ``empty``: there was nothing to draw."""

    title: str
    total: str
    bars: list[Bar]
    rows: list[Tick]
    columns: list[Tick]
    left: str
    empty: bool


@dataclass(frozen=True, slots=True)
class Table:
    """Cells below titles; ``numbers``: the columns from this one on are numbers."""

    titles: list[str]
    rows: list[list[str]]
    numbers: int = 1


def grouped(number: int) -> str:
    """A number as people of the active language write it, its digits in groups, of three where Django does not know."""
    return numberformat.format(
        number,
        get_format("DECIMAL_SEPARATOR"),
        grouping=get_format("NUMBER_GROUPING") or 3,
        thousand_sep=get_format("THOUSAND_SEPARATOR"),
        force_grouping=True,
    )


def bar_chart(title: str, total: str, slots: Sequence[Slot]) -> Chart:
    """A chart of one series, oldest slot first."""
    highest = max((slot.value for slot in slots), default=0)
    step = tick_step(highest)
    top = max(step, -(-highest // step) * step)
    levels = range(0, top + 1, step)
    left = 6 + LETTER * max(len(grouped(level)) for level in levels)
    slot_width = (RIGHT - left) / max(1, len(slots))
    per_unit = (BOTTOM - TOP) / top
    bars, columns = [], []
    for i, slot in enumerate(slots):
        x, height = left + i * slot_width, max(0, slot.value) * per_unit
        if height:
            height = max(height, 1)  # what is there can be seen
        bars.append(
            Bar(
                slot=_length(x),
                slot_width=_length(slot_width),
                x=_length(x + slot_width * 0.1),
                width=_length(slot_width * 0.8),
                y=_length(BOTTOM - height),
                height=_length(height),
                text=f"{slot.name}: {grouped(slot.value)}",
            )
        )
        if slot.label:
            half = LETTER * len(slot.label) / 2
            middle = min(max(x + slot_width / 2, half), WIDTH - half)  # not over the edge
            columns.append(Tick(_length(middle), slot.label))
    rows = [Tick(_length(BOTTOM - level * per_unit), grouped(level)) for level in levels]
    return Chart(title, total, bars, rows, columns, _length(left), not highest)


def tick_step(highest: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, … that needs no more than LINES lines."""
    return next(
        step for power in count() for step in (10**power, 2 * 10**power, 5 * 10**power) if step * LINES >= highest
    )


def _length(units: float) -> str:
    return f"{units:.1f}"
