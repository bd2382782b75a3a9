"""Settings of the benchmarks, which set the variables once they have started the servers."""

import os

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": "127.0.0.1",
        "PORT": os.environ["BENCHMARK_DATABASE_PORT"],
        "USER": "postgres",
        "NAME": "postgres",
    }
}

CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["BENCHMARK_REDIS_URL"]}}

INSTALLED_APPS = [
    "notifications_counter",
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

ROOT_URLCONF = "benchmarks.urls"
ALLOWED_HOSTS = ["127.0.0.1"]

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "only for benchmarks"
USE_TZ = True
