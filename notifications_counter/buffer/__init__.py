"""A counter's data in Redis."""

from .buffer import Buffer
from .types import BufferStatus

__all__ = ["Buffer", "BufferStatus"]
