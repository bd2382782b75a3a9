"""Exact, fast and cheap unread counters for Django. Start reading in ``counters.py``."""

__version__ = "0.1.0"
