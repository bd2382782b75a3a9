"""Switches counting off in a process without the hook: nobody sees what it writes, so cached totals may be wrong."""

from __future__ import annotations

import math

import django
from django.db import Error, connections
from django.db.backends.signals import connection_created

from ..buffer import Buffer
from ..conf import SETTING, options
from ..databases.errors import explain, needs_a_migration
from ..declaration import declarations
from ..exceptions import CounterError
from ..internals import BaseDatabaseWrapper, unknown_methods
from ..places import at, local_counters
from ..reports import report
from .switch import switch_off

_is_off = set[str]()
"""Aliases of databases whose counters this process has switched off."""


def why_unhooked() -> str:
    """Return why this process has no hook: the site wants none, or Django executes statements by other methods than
    those that were tested. Empty if it has one."""
    if not options.ENABLED:
        return f"{SETTING}['ENABLED'] is False"
    methods = ", ".join(unknown_methods())
    return f"Django {django.get_version()} has methods that were not tested: {methods}" if methods else ""


def distrust(reason: str) -> None:
    """Let this process count rows, and switch counting off before it executes its first statement."""
    Buffer.silent_until = math.inf
    report("unhooked", reason=reason)
    connection_created.connect(_switch_off)


def _switch_off(connection: BaseDatabaseWrapper, **_: object) -> None:
    alias = connection.alias
    if alias in _is_off or alias not in connections or connections[alias] is not connection:  # only faster
        return
    try:
        for _name, counter, place in local_counters(declarations(), alias):
            with at(place):
                switch_off(counter)
        _is_off.add(alias)  # only faster
    except (CounterError, Error) as error:
        if not needs_a_migration(error):
            report("run_failed", command="counting off", reason=explain(error, alias))
