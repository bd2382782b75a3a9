"""The settings with which the tests run: those of Django's test_sqlite.py. On the SUITE_DATABASE at SUITE_PORT if there
is one, and with counters if there is SUITE_COUNTED."""

import importlib.util
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
if kind := os.environ.get("SUITE_DATABASE"):
    for alias, database in DATABASES.items():
        user, name = ("postgres", "postgres") if kind == "postgresql" else ("root", "mysql")
        database.update(
            ENGINE=f"django.db.backends.{kind}", HOST="127.0.0.1", PORT=os.environ["SUITE_PORT"], USER=user, NAME=name
        )
        database["TEST"] = {"NAME": f"{alias}_{os.getpid()}"}
        if kind == "mysql":  # by default, owners such as "null" and "NULL" are the same, of which a check warns
            database["TEST"]["COLLATION"] = "utf8mb4_0900_bin"
if kind == "mysql" and not importlib.util.find_spec("MySQLdb"):
    import pymysql

    pymysql.install_as_MySQLdb()

CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
if COUNTED:
    CACHES["counters"] = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["SUITE_REDIS"]}
NOTIFICATIONS_COUNTER = {"CACHE_ALIAS": "counters", "KEY_PREFIX": f"django-{os.getpid()}"}

TEST_RUNNER = f"{__package__}.shim.Runner"
