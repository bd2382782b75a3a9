"""Settings of the tests. `python -m tests` sets the variables; without them: SQLite, and a Redis of conftest.py."""

import os
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

DATABASE = os.environ.get("TEST_DATABASE", "sqlite")
# Of MariaDB and MySQL. Django's own is mysqlclient.
DRIVER = os.environ.get("TEST_DRIVER", "PyMySQL")
# Processes that a test starts are given the name of the test's own database.
DATABASE_NAME = os.environ.get("TEST_DATABASE_NAME", "")

default: dict[str, Any] = {
    "HOST": "127.0.0.1",
    "PORT": os.environ.get("TEST_DATABASE_PORT", ""),
    "TEST": {"NAME": "tests"},
}
if DATABASE == "postgresql":
    default |= {"ENGINE": "django.db.backends.postgresql", "USER": "postgres", "NAME": DATABASE_NAME or "postgres"}
elif DATABASE in ("mariadb", "mysql"):
    if DRIVER == "PyMySQL":
        import pymysql

        pymysql.install_as_MySQLdb()
    default |= {"ENGINE": "django.db.backends.mysql", "USER": "root", "NAME": DATABASE_NAME or "mysql"}
    default["OPTIONS"] = {"charset": "utf8mb4"}
else:
    # A file: threads and processes share it.
    of_checkout = crc32(str(Path(__file__).parent).encode())
    name = DATABASE_NAME or str(Path(tempfile.gettempdir()) / f"notifications-counter-tests-{of_checkout:08x}.sqlite3")
    options = {"transaction_mode": "IMMEDIATE", "timeout": 60, "init_command": "PRAGMA synchronous=OFF"}  # seconds
    default = {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options, "TEST": {"NAME": name}}
DATABASES = {"default": default}

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("TEST_REDIS_URL", "redis://127.0.0.1:6379/0"),
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 30, "SOCKET_TIMEOUT": 30},  # seconds
    }
}

NOTIFICATIONS_COUNTER: dict[str, Any] = {
    "KEY_PREFIX": os.environ.get("TEST_KEY_PREFIX", "nc-tests"),
    "DEPLOY_SECONDS": 0,
    "WALK_SECONDS": 0,  # tests of recounts break counts themselves
}

AUTH_USER_MODEL = {"int": "accounts.User", "uuid": "accounts.UUIDUser", "string": "accounts.StringUser"}[
    os.environ.get("TEST_USER_KEY", "int")
]

INSTALLED_APPS = [
    "notifications_counter",
    "notifications_counter.inbox",
    "tests.accounts",
    "tests.composite_owners",
    "tests.statements",
    "tests.tasks",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
SECRET_KEY = "only for tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
# Their tables as they are, because a database takes most of its time for the migrations of Django's own apps.
MIGRATION_MODULES: dict[str, Any] = dict.fromkeys(["accounts", "admin", "auth", "contenttypes", "sessions"])
