"""The page about django-notifications-hq is walked, from a site that has it to one without."""

import re
import subprocess
import sys

import pytest

from tests.contrib.test_notifications_hq import TABLE
from tests.docs.test_docs import page, python_blocks

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True), pytest.mark.slow]

SETUP = "import django\ndjango.setup()\nfrom django.contrib.auth import get_user_model\nUser = get_user_model()\n"

BEFORE = """
from notifications.signals import notify
anna, bert, cleo = [User.objects.create_user(username) for username in ("anna", "bert", "cleo")]
notify.send(anna, recipient=bert, verb="called", target=cleo, page=7)
notify.send(anna, recipient=[bert, cleo], verb="wrote")
bert.notifications.get(verb="wrote").mark_as_read()
"""

IMPORTED = """
from notifications_counter.counters import unread
anna, bert, cleo = User.objects.order_by("username")
assert unread.counts([anna, bert, cleo]) == {anna.pk: 0, bert.pk: 1, cleo.pk: 1}
(called,) = bert.notifications.unread()
assert called.title == f"{anna} called {cleo}", called.title
assert called.data["page"] == 7
assert bert.notifications.read().get().kind == "wrote"
for user in (bert, cleo):
    user.notifications.all().delete()
photo = cleo
"""


@pytest.fixture
def run(child_environment, tmp_path):
    def run(site: str, *arguments: str) -> str:
        environment = {
            **child_environment,
            "DJANGO_SETTINGS_MODULE": "tests.contrib.hq_settings",
            "TEST_DATABASE_NAME": str(tmp_path / "site.sqlite3"),
            "SITE": site,
        }
        command = [sys.executable, "-W", "ignore", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_page_is_true(run) -> None:
    pytest.importorskip("notifications", reason="missing: django-notifications-hq")
    text = page("howto/from-notifications-hq.md")
    blocks = python_blocks(text)
    commands = re.findall(r"^\$ python manage.py (.+)$", text, re.MULTILINE)
    assert [command.split()[0] for command in commands] == [
        "migrate",
        "import_from_notifications_hq",
        "flush_counters",
        "remove_stale_contenttypes",
    ]
    run("before", "-m", "django", "migrate", "--run-syncdb")
    run("before", "-c", SETUP + BEFORE)
    outputs = [run("after", "-m", "django", *command.split()) for command in commands[:3]]
    assert outputs[1] == "3 notifications imported.\n"
    run("after", "-c", SETUP + IMPORTED + "".join(blocks[1:]))
    (drop,) = re.findall(r"DROP TABLE (\w+)", text)
    assert drop == TABLE
    sql = f"from django.db import connection\nconnection.cursor().execute('DROP TABLE {drop}')"
    run("after", "-c", SETUP + sql)
    run("after", "-m", "django", *commands[3].split(), "--no-input")
