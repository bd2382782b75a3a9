"""A site that leaves django-notifications-hq. With SITE=before it has that app, else the settings of the page."""

import os
import re
from pathlib import Path

from django.db.models import options

from tests.settings import *  # noqa: F403

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "from-notifications-hq.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)

INSTALLED_APPS = [
    "notifications",
    "tests.accounts",
    "django.contrib.auth",
    "django.contrib.contenttypes",
]
MIGRATION_MODULES: dict = {}  # those of that app name the ones before them
DJANGO_NOTIFICATIONS_CONFIG = {"USE_JSONFIELD": True}
ROOT_URLCONF, urlpatterns = __name__, []
if os.environ["SITE"] == "before":
    options.DEFAULT_NAMES += ("index_together",)  # which Django 5.1 and newer refuse
else:
    exec(BLOCKS[0])
