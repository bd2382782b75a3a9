"""The settings with which the tests run: those of Django's test_sqlite.py. On PostgreSQL if there is
SUITE_POSTGRESQL_PORT, and with counters if there is SUITE_COUNTED."""

import os
import sys

COUNTED = os.environ.get("SUITE_COUNTED")
OURS = ["notifications_counter", f"{__package__}.shim.Shim"] if COUNTED else []

SECRET_KEY = "django_tests_secret_key"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
sys.modules["__main__"].ALWAYS_INSTALLED_APPS += OURS  # runtests.py imports this

DATABASES = {alias: {"ENGINE": "django.db.backends.sqlite3"} for alias in ("default", "other")}
if port := os.environ.get("SUITE_POSTGRESQL_PORT"):
    for alias, database in DATABASES.items():
        database.update(
            ENGINE="django.db.backends.postgresql", HOST="127.0.0.1", PORT=port, USER="postgres", NAME="postgres"
        )
        database["TEST"] = {"NAME": f"{alias}_{os.getpid()}"}

CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
if COUNTED:
    CACHES["counters"] = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["SUITE_REDIS"]}
NOTIFICATIONS_COUNTER = {"CACHE_ALIAS": "counters", "KEY_PREFIX": f"django-{os.getpid()}"}

TEST_RUNNER = f"{__package__}.shim.Runner"
