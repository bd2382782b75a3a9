"""The functions of ``tasks``, as tasks for ``django.tasks`` of Django 6 or its backport django-tasks. Enqueue them."""

from __future__ import annotations

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task  # type: ignore[no-redef]

from .. import tasks


@task
def flush() -> dict[str, int]:
    """``tasks.flush``."""
    return tasks.flush()


@task
def recount() -> dict[str, int]:
    """``tasks.recount``."""
    return tasks.recount()


@task
def clean() -> int:
    """``tasks.clean``."""
    return tasks.clean()
