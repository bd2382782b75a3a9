"""System checks of settings, counters, databases and Redis.

Only ``manage.py check --deploy`` asks Redis, so a site starts without it.
"""

from . import counters, server, settings, tables  # noqa: F401
from .registration import REDIS_TAG, TAG

__all__ = ["REDIS_TAG", "TAG"]
