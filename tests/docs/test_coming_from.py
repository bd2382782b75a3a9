"""Each way that docs/howto/coming-from.md describes is walked, on the site of docs/howto/count-any-model.md."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from django.db import connection

from tests.docs.test_docs import page, python_blocks, section

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "mysql", reason="The page's triggers are those of PostgreSQL."),
    pytest.mark.slow,
]

PAGE = page("howto/coming-from.md")
MODEL = python_blocks(page("howto/count-any-model.md"))
SETTINGS = """
from tests.settings import *
INSTALLED_APPS = ["notifications_counter", "tickets", "support", "tests.accounts", "django.contrib.auth"]
INSTALLED_APPS += ["django.contrib.contenttypes"]
MIGRATION_MODULES = {"accounts": None}  # like the apps whose tables refer to it
ROOT_URLCONF, urlpatterns = __name__, []
"""
PROFILE = """

class Profile(models.Model):
    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    open_tickets = models.IntegerField(default=0)
"""
SETUP = """
import django
django.setup()
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection, migrations, transaction
from django.db.models import F
from support.models import Profile
anna, bert = [get_user_model().objects.create_user(username) for username in ("anna", "bert")]
call_command("flush_counters", verbosity=0)
"""
CHECK = """
rows = {agent.pk: Ticket.objects.filter(agent=agent, closed=False).count() for agent in (anna, bert)}
assert open_tickets.counts([anna, bert]) == rows, (open_tickets.counts([anna, bert]), rows)
"""


@pytest.fixture
def site(child_environment: dict[str, str], tmp_path: Path) -> Iterator[Any]:
    """Runs the code of a section, and what a test adds, on a site and a database of its own."""
    files = {
        "site_settings.py": SETTINGS,
        "tickets/models.py": MODEL[1],
        "support/models.py": MODEL[2] + PROFILE,
        "support/counters.py": MODEL[3],
        "tickets/__init__.py": "",
        "support/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    name = str(tmp_path / "site.sqlite3")
    if connection.vendor == "postgresql":
        name = f"{connection.settings_dict['NAME']}_coming_from"
        with connection.cursor() as cursor:
            cursor.execute(f'CREATE DATABASE "{name}"')
    environment = {
        **child_environment,
        "DJANGO_SETTINGS_MODULE": "site_settings",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[2])]),
        "TEST_DATABASE_NAME": name,
    }

    def run(*arguments: str) -> None:
        done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        run("-m", "django", "migrate", "--run-syncdb")
        yield lambda *code: run("-c", SETUP + python_blocks(PAGE)[0] + "".join(map(dedent, code)) + CHECK)
    finally:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f'DROP DATABASE "{name}"')


def blocks(heading: str) -> list[str]:
    return python_blocks(section(PAGE, heading))


def test_every_section_is_walked() -> None:
    sections = re.findall(r"^## (From .+)$", PAGE, re.MULTILINE)
    assert sections == ["From COUNT(*)", "From cache.incr()", "From a column with F()", "From triggers"]


def test_from_count(site: Any) -> None:
    before, after, many = blocks("From COUNT(*)")
    site(
        before,
        "old = badge\n",
        after,
        many,
        """
        for agent, closed in [(anna, False), (anna, True), (anna, False), (bert, False)]:
            Ticket.objects.create(agent=agent, subject="x", closed=closed)
        assert [badge(agent) for agent in (anna, bert)] == [old(agent) for agent in (anna, bert)] == [2, 1]
        assert badges([anna, bert]) == {anna.pk: 2, bert.pk: 1}
        """,
    )


def test_from_incr(site: Any) -> None:
    before, after = blocks("From cache.incr()")
    site(
        before,
        """
        key = f"open-tickets:{anna.pk}"
        cache.set(key, 0)
        first, second = open_ticket(anna, "x"), open_ticket(anna, "y")
        close_ticket(first)
        assert cache.get(key) == open_tickets.count(anna) == 1
        try:
            with transaction.atomic():
                close_ticket(second)
                raise ZeroDivisionError
        except ZeroDivisionError:
            assert (cache.get(key), open_tickets.count(anna)) == (0, 1)  # why one comes from there
        """,
        after,
        """
        third = open_ticket(anna, "z")
        close_ticket(Ticket.objects.get(pk=second.pk))
        with transaction.atomic():
            close_ticket(third)
            assert open_tickets.count(anna) == 0
            transaction.set_rollback(True)
        assert open_tickets.count(anna) == 1
        cache.delete(key)
        """,
    )


def test_from_a_column(site: Any) -> None:
    before, after, busiest = blocks("From a column with F()")
    site(
        before,
        """
        profile = Profile.objects.create(user=anna, open_tickets=3)
        tickets = [Ticket.objects.create(agent=anna, subject="x") for _ in range(3)]
        Ticket.objects.create(agent=bert, subject="x")
        close_ticket(tickets.pop())
        profile.refresh_from_db()
        assert profile.open_tickets == open_tickets.count(profile.user) == 2
        """,
        after,
        busiest,
        """
        open_tickets.flush()
        assert [row.pk for row in busiest_agents()] == [anna.pk, bert.pk]
        for ticket in tickets:
            close_ticket(ticket)
        open_tickets.flush()
        assert busiest_agents()[0].pk == bert.pk
        """,
    )


@pytest.mark.skipif(connection.vendor != "postgresql", reason="The page's triggers are those of PostgreSQL.")
def test_from_triggers(site: Any) -> None:
    drop, after = blocks("From triggers")
    site(
        '''
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE counts AS SELECT 0 AS number")
            cursor.execute("""
                CREATE FUNCTION count_open_tickets() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN UPDATE counts SET number = number + 1; RETURN NULL; END $$
            """)
            cursor.execute(
                "CREATE TRIGGER count_open_tickets AFTER INSERT ON tickets_ticket "
                "FOR EACH ROW EXECUTE FUNCTION count_open_tickets()"
            )

        def number():
            with connection.cursor() as cursor:
                cursor.execute("SELECT number FROM counts")
                return cursor.fetchone()[0]

        Ticket.objects.create(agent=anna, subject="x")
        assert number() == open_tickets.count(anna) == 1
        operation = (
        ''',
        drop.rstrip().rstrip(","),
        """
        )
        with connection.schema_editor() as editor:
            operation.database_forwards("tickets", editor, None, None)
        """,
        after,
        """
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO tickets_ticket (agent_id, subject, closed) VALUES (%s, 'y', false)", [anna.pk])
        assert (number(), open_tickets.count(anna)) == (1, 1)
        after_import([anna])
        assert open_tickets.count(anna) == 2
        """,
    )
