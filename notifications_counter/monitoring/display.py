"""Formats numbers, times and tables for people, in the active language."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.template.defaultfilters import date, floatformat
from django.utils import timezone
from django.utils.formats import get_format
from django.utils.html import format_html
from django.utils.safestring import mark_safe
from django.utils.translation import pgettext


def grouped(number: float) -> str:
    """Return a number with grouped digits: in threes if the locale does not say how."""
    text = floatformat(number, "-2g")
    if not re.match(r"-?\d{4}", text):
        return text
    comma = "," if floatformat(0.5, 1) == "0.5" else "."
    return re.sub(r"(?<=\d)(?=(\d{3})+(?!\d))", comma, text)


def duration(seconds: float) -> str:
    """Return a length of time, in a unit that gives few digits."""
    for least, length, text in (
        (172800, 86400, pgettext("days", "%s d")),
        (7200, 3600, pgettext("hours", "%s h")),
        (60, 60, pgettext("minutes", "%s min")),
    ):
        if seconds >= least:
            return text % grouped(int(seconds // length))
    if 0 < seconds < 1:
        return pgettext("milliseconds", "%s ms") % grouped(math.ceil(1000 * seconds))
    return pgettext("seconds", "%s s") % int(seconds)


def moment(timestamp: float, clock: str = "H:i") -> str:
    """Return a time in the style ``clock``, after its date if that is not today."""
    at, now = local(timestamp), local(time.time())
    day = "" if at.date() == now.date() else "MONTH_DAY_FORMAT" if at.year == now.year else "DATE_FORMAT"
    return styled(at, f"{day} {clock}")


def local(timestamp: float) -> datetime:
    """Return a time in the current time zone."""
    return datetime.fromtimestamp(timestamp, timezone.get_current_timezone())


def styled(at: datetime, styles: str) -> str:
    """Return a date and time in one style after another. Names of months are short."""
    return " ".join(date(at, get_format(style).replace("F", "M")) for style in styles.split())


def unbroken(text: str) -> str:
    """Return a text in which no line ends between a number and its unit, or within a date and time."""
    return re.sub(r"(?<=\d) ", "\N{NO-BREAK SPACE}", text)


def with_code(text: str) -> str:
    """Return a text as HTML, in which what is in backticks is code."""
    return mark_safe(re.sub(r"`(.+?)`", r"<code>\1</code>", format_html("{}", text)))


def odd(text: str, level: str = "warned") -> str:
    """Return what is not as it should be, so that it is seen: ``warned`` or ``bad``."""
    return format_html('<strong class="nc-odd nc-{}">{}</strong>', level, text)


@dataclass(frozen=True, slots=True)
class Table:
    """A table for a template. ``words`` explains some titles. On a phone, a row of a table that has a ``name`` is a
    block, in which each cell has its title."""

    titles: list[str]
    rows: list[list[str]]
    words: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    @property
    def cells(self) -> list[list[tuple[str, str]]]:
        """Each row, as titles and texts of its cells."""
        return [list(zip(self.titles, row, strict=True)) for row in self.rows]
