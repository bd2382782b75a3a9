"""One statement a chunk for each database: add deltas to the totals of users that do not have the batch yet."""

from importlib import import_module
from typing import Any

SUPPORTED = ("postgresql", "mysql", "sqlite")


def dialect(vendor: str) -> Any:
    """The module for a database: ``apply(connection, target, batch, chunk)``."""
    return import_module(f"{__name__}.{vendor if vendor in SUPPORTED else 'generic'}")
