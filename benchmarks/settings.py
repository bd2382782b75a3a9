"""Settings of the benchmarks, which set the environment variables after they have started the servers."""

import os
from typing import Any

DATABASES: dict[str, dict[str, Any]] = {
    "postgresql": {"ENGINE": "django.db.backends.postgresql", "USER": "postgres", "NAME": "postgres"},
    "mariadb": {"ENGINE": "django.db.backends.mysql", "USER": "root", "NAME": "benchmarks"},
    "mysql": {"ENGINE": "django.db.backends.mysql", "USER": "root", "NAME": "benchmarks"},
    "sqlite": {
        "ENGINE": "django.db.backends.sqlite3",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,  # seconds
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
        "NAME": os.environ.get("BENCHMARK_DATABASE_NAME"),
    },
}
DATABASES = {"default": DATABASES[os.environ["BENCHMARK_DATABASE"]]}
if os.environ["BENCHMARK_DATABASE"] != "sqlite":
    DATABASES["default"] |= {"HOST": "127.0.0.1", "PORT": os.environ["BENCHMARK_DATABASE_PORT"]}
if os.environ["BENCHMARK_DATABASE"] in ("mariadb", "mysql"):
    import pymysql

    pymysql.install_as_MySQLdb()
    DATABASES["default"]["OPTIONS"] = {"charset": "utf8mb4"}

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ["BENCHMARK_REDIS_URL"],
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 0.1, "SOCKET_TIMEOUT": 0.1},  # seconds
    }
}

INSTALLED_APPS = [
    "notifications_counter",
    "notifications_counter.inbox",
    "benchmarks",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]

ROOT_URLCONF = "notifications_counter.inbox.urls"
ALLOWED_HOSTS = ["127.0.0.1"]

NOTIFICATIONS_COUNTER = {"DEPLOY_SECONDS": 0}  # no other release runs

LOGGING = {"version": 1, "loggers": {"notifications_counter": {"level": "ERROR"}}}  # generations are intended

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "only for benchmarks"
USE_TZ = True
