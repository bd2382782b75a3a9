"""SQL of our own: what a flush writes, and what recounts and rankings read. A module for each database that differs."""

from importlib import import_module
from typing import Any

from ..exceptions import ConfigurationError

SUPPORTED = ("postgresql", "mysql", "sqlite")


def dialect(vendor: str) -> Any:
    """Return the module for a database, which has ``apply(target, batch, chunk)``."""
    if vendor not in SUPPORTED:
        raise ConfigurationError(f"Counters need PostgreSQL, MariaDB, MySQL or SQLite, not a database of {vendor!r}.")
    return import_module(f"{__name__}.{vendor}")
