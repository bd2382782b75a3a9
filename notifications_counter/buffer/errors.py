"""The exceptions of redis-py, and FAILURES, which are those that it raises if Redis does not answer, or refuses.

Importing redis-py takes longer than importing the whole app, so that happens when one of them is needed first. Use them
as ``errors.ResponseError``.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    from redis import exceptions

    if name == "FAILURES":
        found: Any = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
    else:
        found = getattr(exceptions, name)
    globals()[name] = found
    return found
