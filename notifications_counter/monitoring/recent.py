"""The last events of all counters, as a table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from django.template.defaultfilters import truncatechars
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..buffer.types import UNREADABLE
from ..events import Event
from ..maintenance.history import history
from .display import Table, grouped, moment

EVENTS = 10
"""Rows of the table."""


def event_table() -> Table:
    """Return the last events of all counters. Events without the fields or values that a type has are left out, because
    something else wrote them."""
    rows: list[list[str]] = []
    for event in history.latest(EVENTS):
        with suppress(OSError, *UNREADABLE):
            rows.append([moment(event["timestamp"]), event["counter"], *TYPES[event["type"]](event)])
    return Table([_("Time"), _("Counter"), _("Event"), _("Details")], rows, numbers=4)


def _epoch(event: Event) -> str:
    return _("shard %(shard)s, epoch %(epoch)s") % {"shard": event["shard"], "epoch": grouped(event["epoch"])}


def _recount(event: Event) -> tuple[str, str]:
    text = ngettext(
        "%(checked)s owner checked, %(corrected)s corrected",
        "%(checked)s owners checked, %(corrected)s corrected",
        event["checked"],
    )
    return _("Recount"), text % {"checked": grouped(event["checked"]), "corrected": grouped(event["corrected"])}


def _rejected(event: Event) -> tuple[str, str]:
    member = truncatechars(repr(event["member"]), 60)
    return _("Rejected"), _("member %(member)s, change %(delta)s") % {"member": member, "delta": event["delta"]}


def _mismatched(event: Event) -> tuple[str, str]:
    text = ngettext("%(wrong)s wrong count: %(examples)s", "%(wrong)s wrong counts: %(examples)s", event["wrong"])
    about = {"wrong": grouped(event["wrong"]), "examples": truncatechars(event["examples"], 60)}
    return _("Corrected"), text % about


TYPES: dict[str, Callable[[Event], tuple[str, str]]] = {
    "recovery": lambda event: (_("Recovery began"), _epoch(event)),
    "recovered": lambda event: (_("Recovery complete"), _epoch(event)),
    "declared": lambda event: (_("Declaration changed"), _("by a new release")),
    "replaced": lambda event: (_("Flusher replaced"), _("by one of another release")),
    "recount": _recount,
    "mismatched": _mismatched,
    "rejected": _rejected,
}
