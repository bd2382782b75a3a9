"""A counter's data in Redis; and the scripts and the client, which the recipes and live updates share."""

from .buffer import Buffer
from .types import BufferStatus

__all__ = ["Buffer", "BufferStatus"]
