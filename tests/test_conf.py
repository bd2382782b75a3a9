"""The settings are read live, and never written."""

import pytest

from notifications_counter.conf import BUILT_IN_COUNTERS, ENTRIES, options
from notifications_counter.counters import BUILT_IN

pytestmark = pytest.mark.once


def test_options_follow_the_settings(settings):
    assert ENTRIES["SHARDS"].default == options.SHARDS
    settings.NOTIFICATIONS_COUNTER = {"SHARDS": 4}
    assert options.SHARDS == 4


def test_there_are_no_other_options():
    with pytest.raises(AttributeError, match="SHARD"):
        _ = options.SHARD


def test_the_setting_knows_the_names_of_the_built_in_counters():
    assert tuple(BUILT_IN) == BUILT_IN_COUNTERS
