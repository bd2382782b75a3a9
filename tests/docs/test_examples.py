"""The examples of the documentation run: on a page of their own, or, as a reader would follow them, on a new site."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import redis

import servers
from notifications_counter.counters import BUILT_IN
from tests.docs.test_docs import FENCE, PAGES, ROOT, page, python_blocks, section
from tests.support import in_use

pytestmark = [pytest.mark.once, pytest.mark.slow]

OF_SITES = {"quickstart.md", "count-any-model.md", "conversations.md", "test-your-site.md", "leave.md"}  # below
OF_PACKAGES = {  # which have tests of their own
    "coming-from.md",
    "lists.md",
    "in-production.md",
    "tenants.md",
}
WITH_PYTHON = [p for p in PAGES if python_blocks(p.read_text()) and p.name not in OF_SITES | OF_PACKAGES]


def run(code: str, names: dict[str, Any]) -> None:
    """Execute code; an expression is followed by a comment that shows its value."""
    lines = code.splitlines()
    for node in ast.parse(code).body:
        if isinstance(node, ast.Expr):
            value = eval(ast.unparse(node), names)
            with suppress(SyntaxError, ValueError):  # the comment is prose
                shown = ast.literal_eval(lines[node.end_lineno - 1][node.end_col_offset :].strip().removeprefix("# "))
                assert value == shown, ast.unparse(node)
        else:
            exec(compile(ast.Module([node], []), "example", "exec"), names)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_run(path: Path, alice: Any, rf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    request = rf.get("/")
    request.user = alice
    names = {"user": alice, "request": request, "INSTALLED_APPS": [], "CACHES": {"counters": {}}}
    with in_use(*BUILT_IN):
        for code in python_blocks(path.read_text()):
            run(code, names)


class Site:
    """A Django project in a directory of its own, with a Redis of its own."""

    def __init__(self, directory: Path, redis: str):
        self.directory = directory
        self.redis = redis
        self.python("-m", "django", "startproject", "mysite", ".")
        self.append("mysite/settings.py", *python_blocks(section(page("quickstart.md"), "Settings")))

    def append(self, file: str, *blocks: str) -> None:
        path = self.directory / file
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as f:
            f.writelines(f"\n{block}" for block in blocks)
        text = path.read_text()
        text = text.replace("redis://127.0.0.1:6379/1", self.redis)
        path.write_text(text.replace('TIMEOUT": 0.1', 'TIMEOUT": 10'))  # this machine may be busy

    def replace(self, file: str, before: str, after: str) -> None:
        path = self.directory / file
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after))

    def copy(self) -> "Site":
        """The next release, beside this one, with the same database."""
        there = copy(self)
        there.directory = self.directory / "next"
        shutil.copytree(self.directory, there.directory)
        database = str(self.directory / "db.sqlite3")
        there.append("mysite/settings.py", f"DATABASES['default']['NAME'] = {database!r}\n")
        return there

    def python(self, *args: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        run = subprocess.run(
            [sys.executable, *args], cwd=self.directory, env=environment, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def shell(self, code: str) -> str:
        return self.python("manage.py", "shell", "--verbosity=0", "--command", code)

    def console(self, text: str) -> None:
        """Type the commands of manage.py; each shows the lines that follow it."""
        (session,) = [code for language, code in FENCE.findall(text) if language == "console"]
        for command, shown in re.findall(r"^\$ python (manage.py .*)\n((?:[^$].*\n)*)", session, re.MULTILINE):
            assert shown in self.python(*command.split())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with servers.redis() as server:
        yield Site(tmp_path, server.url)


CALL = "from django.core.management import call_command\n"
MIGRATE = 'call_command("migrate")\ncall_command("flush_counters")\n'
USERS = """
from django.contrib.auth.models import User
anna, bert = map(User.objects.create_user, ["anna", "bert"])
"""
VISIT = """
from django.test import Client
client = Client(SERVER_NAME="localhost")
assert client.post("/admin/login/", {"username": "anna", "password": "secret"}).status_code == 302
assert "Welcome" in client.get("/notifications/").text
home = client.get("/").text
assert "inbox.css" in home
assert ">1<" in home, home
"""


def test_the_quickstart(site: Site) -> None:
    text = page("quickstart.md")
    site.console(section(text, "Tables"))
    site.shell(*python_blocks(section(text, "Notifications")))
    urls, login = python_blocks(section(text, "The inbox"))
    templates, home = python_blocks(section(text, "The bell"))
    (site.directory / "mysite" / "urls.py").unlink()
    site.append("mysite/urls.py", urls, home)
    site.append("mysite/settings.py", login, templates)
    site.append("templates/home.html", *(code for language, code in FENCE.findall(text) if language == "html"))
    site.shell(VISIT)
    site.python("manage.py", "flush_counters")
    (stored,) = python_blocks(section(text, "The flusher"))
    site.shell(f"from tests.docs.test_examples import run\nrun({stored!r}, {{}})")


def test_count_any_model(site: Site) -> None:
    text = page("howto/count-any-model.md")
    settings, models, counter, use, minutes, minutes_spent, cheap, recount = python_blocks(text)
    site.console(section(text, "The models"))
    site.append("mysite/settings.py", settings)
    (site.directory / "tickets/models.py").unlink()
    site.append("tickets/models.py", models)
    site.append("tickets/counters.py", counter)
    site.console(section(text, "Use it"))
    site.shell(use)
    path = site.directory / "tickets/models.py"
    for fields in minutes.split("class ")[1:]:
        name, _, new = fields.partition("    ...  # as above\n")
        path.write_text(path.read_text().replace(f"class {name}", f"class {name}{new}\n"))
    site.append("tickets/counters.py", minutes_spent)
    site.console(section(text, "Use it"))
    spend = "from tickets.counters import *\nTicket.objects.update(minutes=5)\nminutes_spent.flush()\n"
    spent = "print(minutes_spent.count(bert), minutes_spent.top(10))"
    assert "10 [(2, 10)]" in site.shell(f"{use}{cheap}{recount}{spend}{spent}")


REMAINING = """
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from tickets.models import AgentTickets
assert not ContentType.objects.filter(app_label="notifications_counter").exists()
print([name for name in connection.introspection.table_names() if name.startswith("notifications_counter")])
print(list(AgentTickets.objects.values_list("agent__username", "open_count")))
"""


def test_the_way_out(site: Site) -> None:
    """A site without the app works, and nothing is left but the totals that it keeps."""
    of_counters, text = page("howto/count-any-model.md"), page("howto/leave.md")
    settings, models, counter, use, *_ = python_blocks(of_counters)
    site.python("manage.py", "startapp", "tickets")
    site.append("mysite/settings.py", settings)
    (site.directory / "tickets/models.py").write_text(models)
    site.append("tickets/counters.py", counter)
    site.console(section(of_counters, "Use it"))
    site.shell(use + "Ticket.objects.create(agent=anna, subject='It is still here')")

    flush, off, migrate, stale = re.findall(r"\$ python manage.py (.*)", text)
    site.python("manage.py", *flush.split())
    site.python("manage.py", *off.split())
    left = site.copy()
    (left.directory / "tickets/counters.py").unlink()
    left.replace("tickets/models.py", "from notifications_counter.models import BaseCount\n", "")
    updated_at = re.search(r"`(updated_at = .*)`", text)[1]
    left.replace("tickets/models.py", "(BaseCount):", f"(models.Model):\n    {updated_at}")
    left.replace("mysite/settings.py", '"notifications_counter", "notifications_counter.inbox"', "")
    left.python("manage.py", "makemigrations")
    left.python("manage.py", "migrate")
    site.python("manage.py", *migrate.split())
    left.python("manage.py", *stale.split(), "--no-input")
    assert left.shell(REMAINING).splitlines() == ["[]", "[('anna', 1)]"]
    with redis.Redis.from_url(site.redis) as client:
        assert client.keys()
        left.shell(python_blocks(text)[0])
        assert not client.keys()


def test_conversations(site: Site) -> None:
    models, counters, use = python_blocks(page("howto/conversations.md"))
    site.append("mysite/settings.py", "INSTALLED_APPS += ['chat']\n")
    site.append("chat/__init__.py")
    site.append("chat/models.py", models)
    site.append("chat/counters.py", counters)
    check = 'call_command("check", fail_level="WARNING")\ncall_command("makemigrations", "chat")\n'
    recount = 'call_command("flush_counters")\ncall_command("recount_counters")\n'
    assert " 0 wrong" in site.shell(CALL + check + MIGRATE + USERS + use + recount)


SEND = "from notifications_counter.models import Notification\nNotification.objects.create(user=anna, title='Hello')\n"
RESTORED = """
from django.test import TransactionTestCase

class RestoredTests(TransactionTestCase):
    serialized_rollback = True

    @isolated_counters()
    def test_stored_total(self):
        unread.heal()
        user = get_user_model().objects.create_user("bert", pk=7)
        self.assertEqual(unread.count(user), 0)
        Notification.objects.create(user=user, title="Hello")
        self.assertEqual((unread.count(user), unread.flush().owners), (1, 1))

    test_the_same_key_again = test_stored_total
"""


def test_test_your_site(site: Site) -> None:
    """Beside its Redis in use: nothing of the site's is touched, and what is left goes by itself."""

    def lasting() -> dict[bytes, bytes]:
        return {key: client.dump(key) for key in client.scan_iter() if client.ttl(key) == -1}

    site.append("test_badge.py", *python_blocks(page("howto/test-your-site.md")), RESTORED)
    site.shell(CALL + MIGRATE + USERS + SEND)
    with redis.Redis.from_url(site.redis) as client:
        assert (before := lasting())
        site.python("-m", "pytest", "-p", "no:randomly", "-n", "2", "--ds", "mysite.settings")
        site.python("manage.py", "test", "--parallel", "2")
        assert lasting() == before
