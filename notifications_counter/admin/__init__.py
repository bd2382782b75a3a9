"""The admin: notifications to edit, the counters' own tables to view, and a dashboard."""

from . import bookkeeping, dashboard, notifications, totals  # noqa: F401
