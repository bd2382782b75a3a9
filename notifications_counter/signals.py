"""Signals for sites."""

from django.dispatch import Signal

counts_changed = Signal()
"""Sent after a commit, once for each counter whose counts have changed, or may have changed.

``sender``, ``counter``  the counter
``owners``               the primary keys of the owners; None if it is unknown whose counts have changed
``using``                the alias of the database

If a receiver raises, Django logs the exception and calls the others.
"""
