"""Everything that is in Redis: its keys, its scripts, and a typed method for each script."""

from .buffer import Buffer
from .types import BufferStatus

__all__ = ["Buffer", "BufferStatus"]
