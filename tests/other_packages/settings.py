"""A site with packages that bring models, managers, compilers and patches of their own."""

import os

from django.db.models import options

from tests.settings import *  # noqa: F403
from tests.settings import CACHES, DATABASES, INSTALLED_APPS

# django-notifications-hq 1.8 still has it, and Django 5.1 and newer refuse it.
options.DEFAULT_NAMES += ("index_together",)

# Which of the two patches the compilers first?
CACHALOT = os.environ.get("TEST_CACHALOT", "")

DATABASES["default"]["TEST"]["NAME"] += f"_foreign{CACHALOT}"
if DATABASES["default"]["ENGINE"] == "django.db.backends.postgresql":
    DATABASES["default"]["ENGINE"] = "psqlextra.backend"

INSTALLED_APPS = [
    app for app in INSTALLED_APPS if app not in ("tests.composite_owners", "tests.tasks", "tests.statements")
]
INSTALLED_APPS += ["notifications", "tests.other_packages"]
DJANGO_NOTIFICATIONS_CONFIG = {"SOFT_DELETE": True, "USE_JSONFIELD": True}

CACHES["queries"] = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
CACHALOT_CACHE = "queries"
CACHALOT_ADDITIONAL_SUPPORTED_DATABASES = {"psqlextra.backend"}
if CACHALOT:
    INSTALLED_APPS.insert(0 if CACHALOT == "first" else len(INSTALLED_APPS), "cachalot")
MIGRATION_MODULES = {"accounts": None}  # like tests.other_packages, whose tables refer to it
