"""Switches counting off on a Django that executes statements by other methods than those that were tested: the hook may
not see what this process writes, so nobody may trust a cached total."""

from __future__ import annotations

import math
from contextlib import suppress

import django
from django.db import Error, connections
from django.db.backends.signals import connection_created

from ..buffer import Buffer
from ..declaration import declarations
from ..exceptions import CounterError
from ..internals import BaseDatabaseWrapper, unknown_methods
from ..places import at, local_counters
from ..reports import report
from .switch import switch_off

_is_off = set[str]()
"""Aliases of databases whose counters this process has switched off."""


def distrust_django() -> None:
    """Let this process count rows, and switch counting off before it executes its first statement."""
    Buffer.silent_until = math.inf
    report("unknown_django", version=django.get_version(), methods=", ".join(unknown_methods()))
    connection_created.connect(_switch_off)


def _switch_off(connection: BaseDatabaseWrapper, **_: object) -> None:
    alias = connection.alias
    if alias in _is_off or alias not in connections or connections[alias] is not connection:  # only faster
        return
    with suppress(CounterError, Error):  # the tables may be missing
        for _name, counter, place in local_counters(declarations(), alias):
            with at(place):
                switch_off(counter)
        _is_off.add(alias)  # only faster
