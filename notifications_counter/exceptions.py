"""The exceptions that the app raises. Each message says what to do."""


class CounterError(Exception):
    """The base class of the app's exceptions."""


class BufferUnavailable(CounterError):
    """Redis cannot be used: it did not answer, refused a command, or may not know a count. Counts are still right,
    because readers count rows."""


class ConfigurationError(CounterError):
    """A setting or a counter is declared in a way that cannot work, a newer release declares the counter differently,
    or the database shows other rows than others see."""


class NotInTransaction(CounterError):
    """A flush or a recount was called inside a transaction, which may be rolled back, and does not see what others
    commit; or autocommit is off, or raw SQL has begun a transaction, and nothing would be committed."""
