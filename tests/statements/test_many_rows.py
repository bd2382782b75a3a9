"""A statement that changes many rows."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from .models import Ticket
from .support import assert_counted

NUMBER = 20_000

CHANGES: dict[str, Callable[[Any, Any], int]] = {
    "update": lambda rows, ben: rows.update(closed=True),
    "update of the owner": lambda rows, ben: rows.update(agent=ben),
    "delete": lambda rows, ben: rows._raw_delete("default"),
}


@pytest.mark.skipif(connection.vendor == "mysql", reason="Its drivers hold all rows that a statement returns.")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_memory_is_bounded(change, ann, ben, owners):
    Ticket.objects.bulk_create(Ticket(agent=ann) for _ in range(NUMBER))
    assert_counted(owners)
    rows = Ticket.objects.filter(title="")
    tracemalloc.start()
    assert change(rows, ben) == NUMBER
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 * NUMBER
    assert_counted(owners, doubt=True)
