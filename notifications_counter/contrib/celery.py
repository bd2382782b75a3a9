"""The functions of ``tasks``, as tasks for Celery. Add this module to ``CELERY_IMPORTS``, and the tasks, such as
``notifications_counter.tasks.flush``, to the schedule of beat."""

from __future__ import annotations

from celery import shared_task

from .. import tasks

flush = shared_task(tasks.flush)
recount = shared_task(tasks.recount)
clean = shared_task(tasks.clean)
