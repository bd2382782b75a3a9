"""Settings of the demo site: SQLite, or PostgreSQL in compose.yaml, and one Redis.

The `demo` and `serve` commands point the variables below at a database and a Redis of their own.
"""

import os
from pathlib import Path

from django.core.management.utils import get_random_secret_key

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = os.environ.get("DEMO_SECRET_KEY") or get_random_secret_key()
DEBUG = False
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "demo_project",
    "notifications_counter",
    "notifications_counter.inbox",
    *(f"django.contrib.{name}" for name in ["admin", "auth", "contenttypes", "sessions", "messages", "staticfiles"]),
    "chartkick.django",
    "django_htmx",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "demo_project.views.StrictPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "demo_project.urls"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                *(f"django.template.context_processors.{name}" for name in ("request", "i18n")),
                *(f"django.contrib.{name}.context_processors.{name}" for name in ("auth", "messages")),
            ]
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DEMO_DATABASE", BASE_DIR / "demo.sqlite3"),
        "OPTIONS": {
            # A transaction that reads before it writes takes the lock at once. Otherwise, it fails with
            # "database is locked" if another one writes meanwhile.
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
            "timeout": 20,  # seconds
        },
    },
}

if host := os.environ.get("DEMO_POSTGRESQL"):  # compose.yaml
    DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "HOST": host, "NAME": "demo", "USER": "demo"}}
    DATABASES["default"] |= {"PASSWORD": "demo", "PORT": os.environ.get("DEMO_POSTGRESQL_PORT", "")}

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        # A database of its own, so that clearing another cache does not clear the buffer.
        "LOCATION": os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/7"),
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 0.1, "SOCKET_TIMEOUT": 0.1},  # seconds
    },
}

NOTIFICATIONS_COUNTER = {
    "KEY_PREFIX": "nc-demo",
    "COUNTERS": ["unread", "unread_by_kind"],
    "ICONS": {"": "demo/bell.svg"} | {kind: f"demo/{kind}.svg" for kind in ("comment", "order", "security")},
    "DEPLOY_SECONDS": 0,  # no other release runs
    "WALK_SECONDS": 10,  # so that the dashboard soon shows a comparison
}

# Nothing to store or to clean up, and one write less for each login.
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
MESSAGE_STORAGE = "django.contrib.messages.storage.cookie.CookieStorage"

# Fast on purpose: hundreds of logins should keep the counters busy, not the hash.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "notifications:inbox"
LOGOUT_REDIRECT_URL = "login"

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
TIME_ZONE = "UTC"
STATIC_URL = "static/"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"django.request": {"level": "ERROR"}},  # do not list missing pages
}
