"""The admin: editable notifications, their read-only totals, and a dashboard."""

from . import dashboard, notifications, totals  # noqa: F401
