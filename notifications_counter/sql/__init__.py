"""The app's own SQL, with which a flush writes and a walk reads. Each database has a module."""

from importlib import import_module
from types import ModuleType

from ..exceptions import ConfigurationError

SUPPORTED = ("postgresql", "mysql", "sqlite")


def dialect(vendor: str) -> ModuleType:
    """Return the module of a database, with ``store(target, chunk)``."""
    if vendor not in SUPPORTED:
        raise ConfigurationError(f"Counters need PostgreSQL, MariaDB or SQLite, not a database of {vendor!r}.")
    return import_module(f"{__name__}.{vendor}")
