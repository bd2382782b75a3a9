"""A site whose tasks wait in its database."""

from importlib.util import find_spec

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "django_tasks_db"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
if not find_spec("django.tasks"):  # the backport
    INSTALLED_APPS += ["django_tasks"]
