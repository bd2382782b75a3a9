"""Everything that is in Redis: keys, scripts, and one typed method a script."""

from .shard import Buffer
from .types import Snapshot, Status

__all__ = ["Buffer", "Snapshot", "Status"]
