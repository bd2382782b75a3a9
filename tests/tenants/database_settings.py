"""A site with a database for each tenant. The thread says which one it works for: Django's usual way."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

name = DATABASES["default"]["TEST"]["NAME"]
DATABASES |= {
    alias: {**DATABASES["default"], "NAME": f"{name}_{alias}", "TEST": {"NAME": f"{name}_{alias}"}}
    for alias in ("default", "blue", "green")
}
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


DATABASE_ROUTERS = [TenantRouter()]
