"""What can go wrong, each with a text that says what to do."""


class CounterError(Exception):
    """Base of every error this app raises."""


class BufferUnavailable(CounterError):
    """Redis did not answer, or refused. Counts are still right: readers count rows."""


class CommandRefused(BufferUnavailable):
    """Redis will not run a command, now or later: it has no such command, or the user of the connection may not run it.
    Counts are still right. ``manage.py check --deploy`` names all that is missing."""


class DatabaseChanged(BufferUnavailable):
    """The keys belong to a database that has another id by now. The next call looks its id up."""


class ConfigurationError(CounterError):
    """A setting or a counter is declared in a way that cannot work."""


class ShardsChanged(CounterError):
    """SHARDS was changed while deltas wait in Redis under the old number."""


class NotInTransaction(CounterError):
    """A flush or a recount was called inside a transaction: nothing tells whether that will be committed, and it would
    not see what others commit."""
