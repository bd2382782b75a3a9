"""A site with a schema for each tenant, on PostgreSQL."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["ENGINE"] = "django_tenants.postgresql_backend"
# Two of these sites may be tested at the same time, by two workers.
DATABASES["default"]["TEST"]["NAME"] += f"_tenants_{os.environ.get('PYTEST_XDIST_WORKER', '')}"
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
TENANT_MODEL, TENANT_DOMAIN_MODEL = "tenants.Client", "tenants.Domain"

SHARED_APPS = ["django_tenants", "tests.tenants", "django.contrib.contenttypes"]
TENANT_APPS = [
    "notifications_counter",
    "notifications_counter.inbox",
    "tests.accounts",
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.admin",
    "django.contrib.sessions",
    "django.contrib.messages",
]
INSTALLED_APPS = [*SHARED_APPS, *(app for app in TENANT_APPS if app not in SHARED_APPS)]
MIGRATION_MODULES: dict[str, None] = {}  # each schema has every table: deleting a user looks into those of the admin
