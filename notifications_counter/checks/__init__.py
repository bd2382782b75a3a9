"""System checks of settings, counters, and the servers that they use.

Only ``manage.py check --database`` and ``migrate`` ask Redis and the database, so a site starts without them.
"""

from . import counters, servers, settings  # noqa: F401
from .messages import TAG

__all__ = ["TAG"]
