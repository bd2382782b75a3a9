"""Adds the deltas of a batch to the stored totals, with one statement for each chunk."""

from importlib import import_module
from typing import Any

SUPPORTED = ("postgresql", "mysql", "sqlite")


def dialect(vendor: str) -> Any:
    """Return the module for a database, which has ``apply(target, batch, chunk)``."""
    return import_module(f"{__name__}.{vendor if vendor in SUPPORTED else 'generic'}")
