"""Django's usual way to a database for each tenant: the thread says which one it works for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

tenant: ContextVar[str] = ContextVar("tenant", default="default")


@contextmanager
def working_for(alias: str) -> Iterator[None]:
    token = tenant.set(alias)
    try:
        yield
    finally:
        tenant.reset(token)


class TenantRouter:
    def db_for_read(self, model: Any, **hints: Any) -> str:
        return tenant.get()

    db_for_write = db_for_read
