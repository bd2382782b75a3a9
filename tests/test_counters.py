"""Declarations of counters. What they count: tests/statements and tests/writes."""

import pytest
from django.db.models import Q

from notifications_counter.counters import Counter, all_counters
from notifications_counter.exceptions import ConfigurationError
from tests.support import make_counter
from tests.tasks.models import Task

pytestmark = pytest.mark.once


def test_a_declaration_that_other_processes_may_not_have():
    about = {"owner": "project", "condition": Q(done=False), "totals": "tasks.ProjectTaskCount", "field": "open_count"}
    with pytest.raises(ConfigurationError, match="Declare it in the module 'counters' of an app in INSTALLED_APPS"):
        Counter("late", source="tasks.Task", **about)
    with pytest.raises(ConfigurationError, match="must be a Q object"):
        make_counter("late", source="tasks.Task", **about | {"condition": {"done": False}})
    for name in ("", "a{b", "x" * 101, "a\n"):
        with pytest.raises(ConfigurationError, match="cannot be the name of a counter"):
            make_counter(name, source="tasks.Task", **about)
    with pytest.raises(ConfigurationError, match="There is a counter named 'unread' already"):
        make_counter("unread", source="tasks.Task", **about)
    for source in ("Task", "tasks.models.Task", Task):
        with pytest.raises(ConfigurationError, match="The source of counter 'late' must be a string such as"):
            make_counter("late", source=source, **about)
    unused = make_counter("late", source="tasks.Task", **about, is_used=False)
    assert repr(unused) == "<Counter late>"
    with pytest.raises(ConfigurationError, match=r"not in use. Add its name to NOTIFICATIONS_COUNTER\['COUNTERS'\]"):
        unused.count(1)
    assert "late" not in {counter.name for counter in all_counters()}
