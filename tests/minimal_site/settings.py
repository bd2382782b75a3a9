from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS, NOTIFICATIONS_COUNTER

DATABASES["default"]["TEST"]["NAME"] += "_alone"
INSTALLED_APPS = [
    app for app in INSTALLED_APPS if app not in ("tests.composite_owners", "tests.tasks", "tests.statements")
]
INSTALLED_APPS += ["tests.minimal_site"]
NOTIFICATIONS_COUNTER = {**NOTIFICATIONS_COUNTER, "NOTIFICATIONS": False}
ROOT_URLCONF = "tests.minimal_site.urls"
