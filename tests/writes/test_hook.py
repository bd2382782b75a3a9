"""Every write passes a hook, which other packages may wrap."""

from functools import wraps
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db.models.sql import DeleteQuery
from django.db.models.sql.constants import CURSOR

from notifications_counter.counters import unread
from notifications_counter.internals import SQLInsertCompiler
from notifications_counter.writes.hook import install
from tests.support import create
from tests.test_checks import found

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]


def test_a_table_that_nobody_counts_is_left_alone():
    """Whatever result somebody asks for."""
    query = get_user_model().objects.filter(username="nobody").query.chain(DeleteQuery)
    assert query.get_compiler("default").execute_sql(CURSOR).rowcount == 0


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
