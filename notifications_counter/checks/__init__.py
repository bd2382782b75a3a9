"""System checks: what is set or declared in a way that cannot work, or not well.

Redis itself is asked only by ``manage.py check --deploy``: a missing Redis never keeps a site from starting.
"""

from . import counters, server, settings, tables  # noqa: F401
from .registration import REDIS_TAG, TAG

__all__ = ["REDIS_TAG", "TAG"]
