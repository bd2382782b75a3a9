"""A process without the hook: its Django executes statements by other methods than those that the hook wraps, or the
site wants none."""

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
"""

COMMITS_OTHERWISE = """
from inspect import getsource
from textwrap import dedent
from django.db.backends.base import base

for name, before, after in (("commit", "_commit()", "_commit(True)"), ("_commit", "(self)", "(self, chain)")):
    code = dedent(getsource(getattr(base.BaseDatabaseWrapper, name)))
    assert before in code
    exec(code.replace(before, after), vars(base))
    setattr(base.BaseDatabaseWrapper, name, vars(base)[name])
"""

DISABLED = """
from django.conf import settings
settings.NOTIFICATIONS_COUNTER = {**settings.NOTIFICATIONS_COUNTER, "ENABLED": False}
django.VERSION = tested
"""

SCRIPT = """
import django
tested = django.VERSION
django.VERSION = (6, 9, 0, "final", 0)
{change}
django.setup()
from django.core.management import call_command
from django.db import connections, transaction
from django.utils import timezone
from notifications_counter.counters import unread
from notifications_counter.models import CounterState, Notification

print(unread.count({user!r}))
print(CounterState.objects.filter(counter="unread", off_since=None).exists())
with transaction.atomic():
    Notification.objects.filter(pk={pk}).update(read_at=timezone.now())
unread.buffer.client.redis.set(unread.buffer.key("ready"), {ready!r})  # it comes back as it was before
unread.buffer.fall_silent()  # as for the seconds after which other processes ask again
print(unread.count({user!r}), unread.buffer.silent_until)
modules = {{name: getattr(value, "__module__", "") for name, value in vars(connections["default"]).items()}}
print([name for name, module in modules.items() if module.startswith("notifications_counter")])
call_command("check")
call_command("flush_counters")
"""


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (RENAMED, "SQLUpdateCompiler.execute_rows(self, result_type)"),
        (COMMITS_OTHERWISE, "BaseDatabaseWrapper._commit(self, chain)"),
        (DISABLED, "NOTIFICATIONS_COUNTER['ENABLED'] is False"),
    ],
    ids=["renamed", "commits otherwise", "disabled"],
)
def test_rows_are_counted_while_there_is_one(change, reason, healed, alice, child_environment):
    """And it is left alone: wrappers that expect other arguments would fail."""
    first, *_ = notify(alice)
    assert unread.count(alice) == 3
    ready = unread.buffer.status().ready
    script = SCRIPT.format(change=change, pk=first.pk, user=str(alice.pk), ready=ready)
    command = [sys.executable, "-c", script]
    child = subprocess.run(command, env=child_environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stdout.splitlines()[:4] == ["3", "False", "2 inf", "[]"]
    assert "is switched off" in child.stderr  # the log
    assert "W009) Counting is off" in child.stderr
    assert reason in child.stderr
    assert unread.count(alice) == 2  # this process has the hook
    assert [problem.kind for problem in status_of(unread).problems] == ["off"]


@pytest.mark.once
@pytest.mark.slow
def test_a_process_that_may_not_switch_it_off(healed, alice, child_environment):
    script = f"""
import django
from django.conf import settings
settings.NOTIFICATIONS_COUNTER = {{**settings.NOTIFICATIONS_COUNTER, "ENABLED": False}}
database = settings.DATABASES["default"]
database |= {{"NAME": f"file:{{database['NAME']}}?mode=ro", "OPTIONS": {{"uri": True}}}}
django.setup()
from notifications_counter.counters import unread
assert unread.count({str(alice.pk)!r}) == 0
"""
    child = subprocess.run([sys.executable, "-c", script], env=child_environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert "readonly database (counting off is trying again)" in child.stderr


def test_a_tenant_that_was_made_since(healed, monkeypatch):
    """Its flusher may be the first that comes there."""
    monkeypatch.setattr(SQLInsertCompiler, "execute_sql", lambda self, fields, chunk: None)
    monkeypatch.setattr(django, "VERSION", (6, 9, 0, "final", 0))
    unread.heal()
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
