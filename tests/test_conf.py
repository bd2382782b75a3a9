"""The settings are read live, and never written."""

import subprocess
import sys
from pathlib import Path

import pytest
from django.test import override_settings

from notifications_counter.conf import BUILT_IN_COUNTERS, ENTRIES, options
from notifications_counter.counters import BUILT_IN

pytestmark = pytest.mark.once

DEFAULT = ENTRIES["SHARDS"].default


def test_options_follow_the_settings(settings):
    assert options.SHARDS == DEFAULT
    with override_settings(NOTIFICATIONS_COUNTER={"SHARDS": 2}):
        assert options.SHARDS == 2
    assert options.SHARDS == DEFAULT
    settings.NOTIFICATIONS_COUNTER = {"SHARDS": 4}
    assert options.SHARDS == 4


@pytest.mark.parametrize("name", ["SHARD", "_shards"])
def test_there_are_no_other_options(name):
    with pytest.raises(AttributeError, match=name):
        getattr(options, name)


def test_the_setting_knows_the_names_of_the_built_in_counters():
    assert tuple(BUILT_IN) == BUILT_IN_COUNTERS


SITE = """
import django
from django.conf import settings
from django.core.checks import run_checks

settings.configure(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "notifications_counter"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
assert not hasattr(settings, "NOTIFICATIONS_COUNTER")
print([message.id for message in run_checks()])
"""


def test_a_site_without_the_setting_and_without_the_admin():
    run = subprocess.run([sys.executable, "-c", SITE], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert run.stdout == "['notifications_counter.E002']\n", run.stderr  # Django's default cache
