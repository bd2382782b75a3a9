"""Signals for sites."""

from django.dispatch import Signal

counts_changed = Signal()
"""Sent after a commit, once for each counter whose counts have changed, or may have changed.

``sender``, ``counter``  the counter
``owners``               the primary keys of the owners; None if it is unknown whose counts have changed
``using``                the alias of the database

If a receiver raises, Django logs the exception and calls the others.
"""

redis_called = Signal()
"""Sent after each command to Redis, for tracing. It costs nothing if it has no receivers.

``sender``   the class of the client
``name``     the name of the script or the command
``cache``    the alias of the cache
``started``  when it was sent, in nanoseconds since the epoch
``ended``    when the reply was read; for ``confirm``, for whose reply nobody waits, when it was sent
``error``    the exception of redis-py, or None; the signal is sent again for a ``confirm`` that has failed

If a receiver raises, Django logs the exception and calls the others.
"""
