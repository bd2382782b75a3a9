"""The page for migrants from django-notifications-hq is walked, on a table like its own."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connection

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.docs.test_docs import FENCE, page, python_blocks

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="The statement of the page is PostgreSQL's."),
]

PAGE = page("howto/coming-from.md")
TABLE = """
    CREATE TABLE notifications_notification (
        id serial PRIMARY KEY, level varchar(20) DEFAULT 'info', recipient_id {} NOT NULL, unread boolean NOT NULL,
        actor_content_type_id integer NOT NULL, actor_object_id varchar(255) NOT NULL, verb varchar(255) NOT NULL,
        description text, "timestamp" timestamptz DEFAULT now(), deleted boolean DEFAULT false, data text
    )
"""
INSERT = """
    INSERT INTO notifications_notification
    (recipient_id, actor_content_type_id, actor_object_id, verb, unread, deleted, data)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
"""


def test_the_page_is_true(alice: Any, bob: Any, healed: Any) -> None:
    user = get_user_model()._meta
    of_users, of_others = (ContentType.objects.get_for_model(model).pk for model in (get_user_model(), ContentType))
    (statement,) = [code for language, code in FENCE.findall(PAGE) if language == "sql"]
    ours = {"auth_user": user.db_table, "'auth'": f"'{user.app_label}'", "'user'": f"'{user.model_name}'"}
    for theirs, our in ours.items():
        assert theirs in statement
        statement = statement.replace(theirs, our)
    theirs = (
        (bob.pk, of_users, str(alice.pk), "called", True, False, '{"page": 7}'),
        (bob.pk, of_others, str(bob.pk), "is of another model", True, False, None),
        (bob.pk, of_users, str(alice.pk), "x" * 255, False, False, None),
        (alice.pk, of_users, str(bob.pk), "was deleted", True, True, None),
    )
    with connection.cursor() as cursor:
        cursor.execute(TABLE.format(Notification._meta.get_field("user").db_type(connection)))
        cursor.executemany(INSERT, theirs)
        cursor.execute(statement)
        cursor.execute("DROP TABLE notifications_notification")
    call_command("recount_counters", verbosity=0)
    rows = list(Notification.objects.for_user(bob).order_by("pk"))
    titles = [f"{alice} called", "is of another model", f"{alice} {'x' * 255}"[:255]]
    assert [row.title for row in rows] == titles
    assert rows[0].data == {"page": 7, "level": "info"}
    assert rows[2].read_at == rows[2].seen_at == rows[2].created_at
    assert unread.counts([alice, bob]) == {alice.pk: 0, bob.pk: 2}

    Notification.objects.all().delete()
    replace, send = python_blocks(PAGE)
    names: dict[str, Any] = {"INSTALLED_APPS": ["notifications"], "anna": alice, "bert": bob, "cleo": alice}
    names["photo"] = SimpleNamespace(get_absolute_url=lambda: "/photo/")
    exec(replace, names)
    assert names["INSTALLED_APPS"] == ["notifications_counter", "notifications_counter.inbox"]
    exec(send, names)
    assert unread.counts([alice, bob]) == {alice.pk: 1, bob.pk: 1}
