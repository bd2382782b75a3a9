"""Signals for sites."""

from django.dispatch import Signal

counts_changed = Signal()
"""Sent after a commit, once for each counter whose counts have changed, or may have changed.

``sender``, ``counter``  the counter
``owners``               the primary keys of the owners; None if it is unknown whose counts have changed
``using``                the alias of the database

If a receiver raises, Django logs the exception and calls the others.
"""

event_reported = Signal()
"""Sent with each event that the app logs, also with those of level DEBUG that nobody sees.

``sender``, ``counter``  the counter; None if it is about none
``event``                the name of the event
``level``                its level in the log
``fields``               its fields, a dict

If a receiver raises, Django logs the exception and calls the others.
"""
