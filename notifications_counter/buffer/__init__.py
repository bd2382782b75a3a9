"""Everything that is in Redis: keys, scripts, and one typed method a script."""

from .buffer import Buffer, Snapshot, Status

__all__ = ["Buffer", "Snapshot", "Status"]
