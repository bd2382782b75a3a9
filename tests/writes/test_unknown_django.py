"""A Django that executes statements by other methods than those that the hook wraps."""

import subprocess
import sys

import django
import pytest
from django.core.management import CommandError, call_command
from django.db.backends.base.base import BaseDatabaseWrapper

from notifications_counter.counters import unread
from notifications_counter.internals import CursorWrapper, SQLDeleteCompiler, SQLInsertCompiler, SQLUpdateCompiler
from tests.support import notify, status_of
from tests.test_checks import found

pytestmark = pytest.mark.django_db(transaction=True)

RENAMED = """
import django
django.VERSION = (6, 9, 0, "final", 0)

from django.db.models import QuerySet
from django.db.models.sql import UpdateQuery
from django.db.models.sql.compiler import SQLUpdateCompiler
from django.db.models.sql.constants import ROW_COUNT

def update(rows, **values):
    query = rows.query.chain(UpdateQuery)
    query.add_update_values(values)
    return query.get_compiler(rows.db).execute_rows(ROW_COUNT)

SQLUpdateCompiler.execute_rows = SQLUpdateCompiler.execute_sql
del SQLUpdateCompiler.execute_sql
QuerySet.update = update

django.setup()
from django.core.management import call_command
from django.utils import timezone
from notifications_counter.counters import unread
from notifications_counter.models import Notification

Notification.objects.filter(pk={pk}).update(read_at=timezone.now())
unread.buffer.client.redis.set(unread.buffer.key("ready"), {ready!r})  # it comes back as it was before
print(unread.count({user!r}))
call_command("check")
call_command("flush_counters")
"""


def test_rows_are_counted_while_a_process_uses_it(healed, alice, child_environment):
    first, *_ = notify(alice)
    assert unread.count(alice) == 3
    script = RENAMED.format(pk=first.pk, user=str(alice.pk), ready=unread.buffer.status().ready)
    command = [sys.executable, "-c", script]
    child = subprocess.run(command, env=child_environment, capture_output=True, text=True)
    assert (child.returncode, child.stdout.split()[:1]) == (0, ["2"]), child.stderr
    assert "W009) Counting is off" in child.stderr
    assert "SQLUpdateCompiler.execute_rows(self, result_type)" in child.stderr
    assert unread.count(alice) == 2  # this process has the Django before
    assert [problem.kind for problem in status_of(unread).problems] == ["off"]


@pytest.mark.once
@pytest.mark.parametrize(
    ("kind", "name", "method"),
    [
        (SQLInsertCompiler, "execute_sql", lambda self, fields, chunk: None),
        (SQLDeleteCompiler, "execute_returning_sql", lambda self, returning_fields: None),
        (SQLUpdateCompiler, "as_sql", lambda self, returning: None),
        (CursorWrapper, "callproc", lambda self, name: None),
        (BaseDatabaseWrapper, "_commit", lambda self, chain: None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_may_change(monkeypatch, kind, name, method):
    monkeypatch.setattr(kind, name, method, raising=False)
    assert "W009" not in found()  # another package has replaced it
    monkeypatch.setattr(django, "VERSION", (6, 9, 0, "final", 0))
    assert f"{kind.__name__}.{name}" in found()["W009"]
    assert "E006" not in found()
    with pytest.raises(CommandError, match="manage.py check"):
        call_command("counting", "on")
