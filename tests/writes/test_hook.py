"""Every write passes a hook, which other packages may wrap."""

from functools import wraps
from typing import Any

import pytest

from notifications_counter.counters import unread
from notifications_counter.internals import SQLInsertCompiler
from notifications_counter.writes.hook import install
from tests.support import create
from tests.test_checks import found

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]


@pytest.mark.once
def test_other_packages_patch_the_same_method(alice, monkeypatch):
    """As django-cachalot does, which puts back what it found."""
    plain = SQLInsertCompiler.execute_sql.__wrapped__

    @wraps(hook := SQLInsertCompiler.execute_sql)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs)

    assert unread.count(alice) == 0
    monkeypatch.setattr(SQLInsertCompiler, "execute_sql", wrapper)
    install()
    create(alice)
    assert SQLInsertCompiler.execute_sql is wrapper
    assert (unread.count(alice), found()) == (1, {})
    monkeypatch.setattr(SQLInsertCompiler, "execute_sql", plain)
    assert "SQLInsertCompiler.execute_sql" in found()["E006"]
    install()
    create(alice)
    assert (unread.count(alice), found()) == (2, {})
