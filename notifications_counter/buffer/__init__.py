"""What Redis holds of a counter, all scripts, and the client that the recipes and live updates use, too."""

from .buffer import Buffer
from .types import BufferStatus

__all__ = ["Buffer", "BufferStatus"]
