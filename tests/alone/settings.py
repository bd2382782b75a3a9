from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS, NOTIFICATIONS_COUNTER

DATABASES["default"]["TEST"]["NAME"] += "_alone"
INSTALLED_APPS = [app for app in INSTALLED_APPS if app not in ("tests.columns", "tests.tasks", "tests.door")]
INSTALLED_APPS += ["tests.alone"]
NOTIFICATIONS_COUNTER = {**NOTIFICATIONS_COUNTER, "NOTIFICATIONS": False}
ROOT_URLCONF = "tests.alone.urls"
