import json
import math
import signal
import subprocess
import sys
import uuid
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.core.management import CommandError
from django.db import connection, models, transaction
from django.db.models.expressions import RawSQL
from django.utils import timezone

from notifications_counter.contrib import notifications_hq
from notifications_counter.contrib.notifications_hq import import_notifications, notify
from notifications_counter.counters import unread
from notifications_counter.exceptions import NotInTransaction
from notifications_counter.models import ImportProgress, Notification
from tests.management.test_commands import run
from tests.support import PATIENCE, OtherConnection, assert_exact, assert_heals
from tests.tasks.models import Project

pytestmark = pytest.mark.django_db(transaction=True)

TABLE = "notifications_notification"


@pytest.fixture
def theirs():
    """The table as django-notifications-hq leaves it. Returns a function that adds a row."""

    class Notification(models.Model):
        level = models.CharField(max_length=20, default="info")
        recipient = models.ForeignKey(get_user_model(), on_delete=models.CASCADE, related_name="+")
        unread = models.BooleanField(default=True)
        actor_content_type = models.ForeignKey(ContentType, on_delete=models.CASCADE, related_name="+")
        actor_object_id = models.CharField(max_length=255)
        verb = models.CharField(max_length=255, default="wrote")
        description = models.TextField(null=True)
        target_content_type = models.ForeignKey(ContentType, on_delete=models.CASCADE, null=True, related_name="+")
        target_object_id = models.CharField(max_length=255, null=True)
        action_object_content_type = models.ForeignKey(
            ContentType, on_delete=models.CASCADE, null=True, related_name="+"
        )
        action_object_object_id = models.CharField(max_length=255, null=True)
        timestamp = models.DateTimeField(default=timezone.now)
        public = models.BooleanField(default=True)
        deleted = models.BooleanField(default=False)
        emailed = models.BooleanField(default=False)
        data = models.TextField(null=True)

        class Meta:
            app_label = "hq"
            db_table = TABLE

    def add(recipient, actor, **fields):
        for role in ("target", "action_object"):
            if role in fields:
                obj = fields.pop(role)
                fields[f"{role}_content_type"] = ContentType.objects.get_for_model(obj)
                fields[f"{role}_object_id"] = str(obj.pk)
        return Notification.objects.create(
            recipient=recipient,
            actor_content_type=ContentType.objects.get_for_model(actor),
            actor_object_id=str(actor.pk),
            **fields,
        )

    with connection.schema_editor() as editor:
        editor.create_model(Notification)
    yield add
    with connection.schema_editor() as editor:
        editor.delete_model(Notification)
    Notification._meta.apps.all_models["hq"].clear()


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(notifications_hq, "BATCH", 2)


def titles(user) -> list[str]:
    return list(user.notifications.order_by("pk").values_list("title", flat=True))


# ------------------------------------------------------------------------------------------------------------- import
def test_where_nothing_would_be_committed_nothing_is_imported(theirs, alice):
    theirs(alice, alice)
    transaction.set_autocommit(False)
    try:
        with pytest.raises(NotInTransaction):
            import_notifications(TABLE)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_a_notification_keeps_what_it_was(healed, theirs, alice, bob):
    project, when = Project.objects.create(), timezone.now() - timedelta(days=3)
    theirs(
        alice,
        bob,
        verb="commented",
        action_object=project,
        target=alice,
        level="warning",
        description="At length.",
        timestamp=when,
        emailed=True,
        public=False,
        data=json.dumps({"page": 7}),
    )
    assert run("import_from_notifications_hq") == ["1 notification imported."]
    ours = alice.notifications.get()
    assert (ours.kind, ours.body, ours.created_at, ours.read_at) == ("commented", "At length.", when, None)
    assert ours.title == f"{bob} commented {project} on {alice}"
    user = f"accounts.{get_user_model()._meta.model_name}"
    assert ours.data == {
        "page": 7,
        "level": "warning",
        "public": False,
        "emailed": True,
        "actor": {"type": user, "id": str(bob.pk)},
        "action_object": {"type": "tasks.project", "id": str(project.pk)},
        "target": {"type": user, "id": str(alice.pk)},
    }
    assert_exact(alice)


def test_read_and_deleted_ones(healed, theirs, alice, bob):
    read = theirs(alice, bob, unread=False, verb="read")
    theirs(alice, bob, deleted=True)
    theirs(bob, alice)
    assert run("import_from_notifications_hq") == ["2 notifications imported, left out 1 that were deleted."]
    row = alice.notifications.get()
    assert row.seen_at == row.read_at == read.timestamp
    assert unread.counts([alice, bob]) == {alice.pk: 0, bob.pk: 1}
    assert_exact(alice, bob)


def test_what_is_gone_has_no_name(healed, theirs, alice, make_user):
    gone = make_user()
    theirs(alice, gone, verb="left", target=Project.objects.create())
    theirs(alice, alice, verb="x" * 255)
    theirs(alice, alice, verb="broke", data="[1]")
    bad = theirs(alice, alice, target=Project.objects.create())
    type(bad).objects.filter(pk=bad.pk).update(target_object_id="no key")
    gone.delete()
    import_notifications()
    assert titles(alice)[0].startswith("left Project object")
    assert titles(alice)[3] == f"{alice} wrote"
    long, broke = alice.notifications.order_by("pk")[1:3]
    assert (len(long.title), len(long.kind)) == (255, 64)
    assert broke.data["data"] == [1]


def test_data_that_only_python_takes_for_json(healed, theirs, alice, bob):
    theirs(alice, bob, data=json.dumps({"ratio": float("nan"), "rest": -math.inf}))
    import_notifications()
    data = alice.notifications.get().data
    assert (data["ratio"], data["rest"]) == ("NaN", "-Infinity")


ON_ANY = {"no JSON": {"data": "{"}, "deep JSON": {"data": "[" * 100_000}}
UNCONSTRAINED = {"no actor's type": {"actor_content_type_id": 9999}, "no recipient": {"recipient_id": 9999}}
BAD = {
    "postgresql": {**ON_ANY, "NUL": {"data": '{"a": "\\u0000"}'}, "surrogate": {"data": '{"a": "\\ud800"}'}},
    "mysql": {**ON_ANY, **UNCONSTRAINED},
    "sqlite": {**ON_ANY, **UNCONSTRAINED, "no UTF-8": {"verb": RawSQL("CAST(x'ff' AS TEXT)", [])}},
}[connection.vendor]


@pytest.mark.parametrize("fields", BAD.values(), ids=list(BAD))
def test_a_row_that_cannot_be_imported_is_left_out_and_named(healed, theirs, alice, bob, caplog, fields):
    rows = [theirs(alice, bob, verb=verb) for verb in "abcdefg"]
    spoilt = type(rows[2]).objects.filter(pk=rows[2].pk)
    before = spoilt.values(*fields).get()
    if "recipient_id" in fields and isinstance(alice.pk, uuid.UUID):
        fields = {"recipient_id": uuid.uuid4()}
    with connection.constraint_checks_disabled():
        spoilt.update(**fields)
    for _ in range(2):
        with pytest.raises(CommandError, match="1 notification could not be imported; the log names each"):
            run("import_from_notifications_hq")
        [record] = [r for r in caplog.records if getattr(r, "event", "") == "import_failed"]
        assert record.key == rows[2].pk
        caplog.clear()
        assert titles(alice) == [f"{bob} {verb}" for verb in "abdefg"]
    spoilt.update(**before)
    assert run("import_from_notifications_hq") == ["1 notification imported."]
    assert run("import_from_notifications_hq") == ["0 notifications imported."]
    assert_exact(alice)


def test_a_name_that_cannot_be_told_does_not_stop_the_import(healed, theirs, alice, bob, monkeypatch, caplog):
    """Nor does anything else that the code of the site raises."""
    project = Project.objects.create()
    monkeypatch.setattr(Project, "__str__", lambda self: 1 / 0)
    theirs(alice, bob, verb="a", target=project)
    theirs(alice, bob, verb="b")
    result = import_notifications()
    assert (result.imported, result.failed) == (1, 1)
    [record] = [r for r in caplog.records if getattr(r, "event", "") == "import_failed"]
    assert record.reason == "ZeroDivisionError: division by zero"


def test_a_second_run_takes_what_came_since(healed, theirs, alice, bob, small_batches):
    for verb in "abc":
        theirs(alice, bob, verb=verb)
    lines = run("import_from_notifications_hq", verbosity=2)
    assert lines == [
        "notifications imported: 2 of 3",
        "notifications imported: 3 of 3",
        "3 notifications imported.",
    ]
    alice.notifications.all().delete()
    theirs(alice, bob, verb="d")
    assert run("import_from_notifications_hq") == ["1 notification imported."]
    assert run("import_from_notifications_hq") == ["0 notifications imported."]
    assert titles(alice) == [f"{bob} d"]
    assert_exact(alice)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="It has one writer at a time.")
def test_a_row_that_is_committed_late_is_copied_by_the_next_run(healed, theirs, alice, bob, small_batches):
    with OtherConnection() as other:
        other.run(transaction.set_autocommit, False)
        other.run(theirs, alice, bob, verb="late")
        for verb in "abc":
            theirs(alice, bob, verb=verb)
        assert run("import_from_notifications_hq") == ["3 notifications imported."]
        other.run(transaction.commit)
    theirs(alice, bob, verb="d")
    assert run("import_from_notifications_hq") == ["2 notifications imported."]
    assert run("import_from_notifications_hq") == ["0 notifications imported."]
    assert sorted(titles(alice)) == [f"{bob} {verb}" for verb in ("a", "b", "c", "d", "late")]
    assert_exact(alice)


def test_gaps_in_the_keys_are_remembered_in_part(healed, theirs, alice, bob, monkeypatch):
    monkeypatch.setattr(notifications_hq, "GAPS", 3)
    first = theirs(alice, bob)
    for distance in (3, 1_000_000_000, 1_000_000_001):
        theirs(alice, bob, pk=first.pk + distance)
    assert import_notifications().imported == 4
    assert ImportProgress.objects.get().missing == [first.pk + 999_999_998, first.pk + 999_999_999]
    theirs(alice, bob, pk=first.pk + 999_999_999)
    assert import_notifications().imported == 1


def test_two_at_once_copy_each_once(healed, theirs, alice, bob, small_batches):
    for verb in "abcdefgh":
        theirs(alice, bob, verb=verb)
    ImportProgress.objects.create(table=TABLE)
    with OtherConnection() as other:
        there = other.start(import_notifications)
        here = import_notifications()
        assert here.imported + there.result(PATIENCE).imported == 8
    assert sorted(titles(alice)) == [f"{bob} {verb}" for verb in "abcdefgh"]
    assert_exact(alice)


def test_killed_it_goes_on_after_the_last_batch(healed, theirs, alice, bob, child_environment, small_batches):
    for verb in "abcdef":
        theirs(alice, bob, verb=verb)
    code = (
        "import time, django; django.setup()\n"
        "from django.core.management import call_command\n"
        "from django.db.models.query import QuerySet\n"
        "from notifications_counter.contrib import notifications_hq\n"
        "notifications_hq.BATCH, create, calls = 2, QuerySet.bulk_create, []\n"
        "def create_and_wait(self, objs):\n"
        "    objs = create(self, objs)\n"
        "    calls.append(1)\n"
        "    if len(calls) == 2:\n"
        "        print('created', flush=True)\n"
        "        time.sleep(60)\n"
        "    return objs\n"
        "QuerySet.bulk_create = create_and_wait\n"
        "call_command('import_from_notifications_hq')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=child_environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "created\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert titles(alice) == [f"{bob} a", f"{bob} b"]
    assert run("import_from_notifications_hq") == ["4 notifications imported."]
    assert titles(alice) == [f"{bob} {verb}" for verb in "abcdef"]
    assert_heals(alice)


def test_without_the_table_it_says_so(healed):
    with pytest.raises(CommandError, match=r"'default' has no table 'notifications_notification'. Import from"):
        run("import_from_notifications_hq")


# --------------------------------------------------------------------------------------------------------------- shim
def test_notify_send_creates_our_notifications(healed, alice, bob):
    when = timezone.now() - timedelta(days=1)
    project = Project.objects.create()
    ((_, made),) = notify.send(
        bob,
        recipient=alice,
        verb="liked",
        action_object=project,
        target=bob,
        level="success",
        description="Much.",
        public=False,
        timestamp=when,
        page=7,
    )
    ours = alice.notifications.get()
    assert made == [ours]
    assert (ours.title, ours.kind, ours.body) == (f"{bob} liked {project} on {bob}", "liked", "Much.")
    assert ours.created_at == when
    assert ours.data["page"] == 7
    assert (ours.data["level"], ours.data["public"]) == ("success", False)
    assert ours.data["action_object"] == {"type": "tasks.project", "id": str(project.pk)}
    assert_exact(alice)


def test_notify_send_to_many(healed, alice, bob, make_user):
    cem = make_user()
    notify.send(alice, recipient=[bob, cem], verb="called")
    notify.send(alice, recipient=get_user_model().objects.filter(pk=cem.pk), verb="called again")
    assert unread.counts([alice, bob, cem]) == {alice.pk: 0, bob.pk: 1, cem.pk: 2}
    assert Notification.objects.filter(title=f"{alice} called").count() == 2


@pytest.mark.parametrize(("address", "url"), [("/projects/7/", "/projects/7/"), (None, "")])
def test_notify_send_takes_the_address_of_the_target(healed, alice, bob, monkeypatch, address, url):
    monkeypatch.setattr(Project, "get_absolute_url", lambda self: address, raising=False)
    notify.send(bob, recipient=alice, verb="closed", target=Project.objects.create())
    assert alice.notifications.get().url == url


def test_notify_send_to_a_user_who_has_users(healed, alice, bob, monkeypatch):
    """As with a foreign key to "self", whose reverse is called like that of a group."""
    User = get_user_model()
    monkeypatch.setattr(User, "user_set", property(lambda self: User.objects.exclude(pk=self.pk)), raising=False)
    notify.send(bob, recipient=alice, verb="wrote")
    assert unread.counts([alice, bob]) == {alice.pk: 1, bob.pk: 0}
