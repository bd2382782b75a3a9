"""Signals for sites."""

from django.dispatch import Signal

counts_changed = Signal()
"""Sent after a commit, once for each counter whose counts have changed, or may have changed.

``sender``, ``counter``  the counter
``owners``               the primary keys of the owners; None if the statement does not say whose counts it changed
``using``                the alias of the database

If a receiver raises, Django logs the exception and calls the others.
"""

redis_called = Signal()
"""Sent after each command to Redis, for traces. Without receivers, it costs nothing.

``sender``   the class of the client
``name``     the name of the script or the command
``cache``    the alias of the cache
``started``  when it was sent, in nanoseconds since the epoch
``ended``    when the reply was read
``error``    the exception of redis-py, None if there was none

If a receiver raises, Django logs the exception and calls the others.
"""
