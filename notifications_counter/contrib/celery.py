"""The functions of ``tasks``, as tasks for Celery. Name this module in ``CELERY_IMPORTS``, and the tasks, such as
``notifications_counter.tasks.flush``, in the schedule of beat."""

from __future__ import annotations

from celery import shared_task

from .. import tasks

flush = shared_task(tasks.flush)
recount = shared_task(tasks.recount)
clean = shared_task(tasks.clean)
prune = shared_task(tasks.prune)
