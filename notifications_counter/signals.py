"""Signals for sites."""

from django.dispatch import Signal

counts_changed = Signal()
"""Sent after a commit, once for each counter whose counts it changed, and may have changed.

``sender``, ``counter``  the counter
``owners``               the primary keys of the owners; None if the statement does not say whose counts it changed
``using``                the alias of the database

A receiver that raises is logged by Django, and the others are called all the same.
"""
