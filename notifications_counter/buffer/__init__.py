"""Everything that is in Redis: its keys, its scripts, and a typed method for each script."""

from .shard import Buffer
from .types import Snapshot, Status

__all__ = ["Buffer", "Snapshot", "Status"]
