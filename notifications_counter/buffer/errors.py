"""The exceptions of redis-py. FAILURES are all that it raises if Redis does not answer, or refuses.

Importing redis-py takes longer than importing the whole app, so it waits until an exception is needed. Write
``errors.ResponseError``.
"""

from typing import Any

from ..internals import redis_py


def __getattr__(name: str) -> Any:
    exceptions = redis_py().exceptions
    if name == "FAILURES":
        found: Any = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
    else:
        found = getattr(exceptions, name)
    globals()[name] = found
    return found
