"""A site that has no users: not even django.contrib.auth is installed."""

from tests.minimal_site.settings import *  # noqa: F403

INSTALLED_APPS = ["notifications_counter"]
AUTH_USER_MODEL = "auth.User"  # Django's default
MIDDLEWARE: list[str] = []
ROOT_URLCONF = __name__
urlpatterns: list[object] = []
