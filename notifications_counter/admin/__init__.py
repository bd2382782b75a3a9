"""The admin: editable notifications, the read-only tables of the counters, and a dashboard."""

from . import bookkeeping, dashboard, notifications, totals  # noqa: F401
