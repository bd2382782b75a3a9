"""A site that has nothing in its settings for its tests."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["TEST"] = {}  # in memory on SQLite, elsewhere test_…
NOTIFICATIONS_COUNTER = {"KEY_PREFIX": os.environ["TEST_KEY_PREFIX"]}
