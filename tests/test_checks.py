"""Each check finds what it is about, and nothing in what is right."""

import io
import math
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import NotSupportedError, connection, models
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import ExtractYear, Now, Random, TruncMonth
from django.db.models.lookups import Exact
from django.db.utils import ConnectionHandler
from django.test.utils import isolate_apps, override_settings

import servers
from notifications_counter import checks
from notifications_counter.checks.servers import check_server
from notifications_counter.declaration import declaration
from notifications_counter.models import BaseCount, Notification, UserNotificationsCount
from tests.composite_owners.models import EXACT, Alert, AppCount, CourseNotification, Organization, Vote, VoteCount
from tests.support import make_counter
from tests.tasks.models import Issue, Post, ProjectIssueCount, ProjectTaskCount, RecurringTask, Task

REDIS = "django_redis.cache.RedisCache"
LOCMEM = "django.core.cache.backends.locmem.LocMemCache"
COMPOSITE = "tests.composite_owners.models"
SECRET = "hunt3r-two"
EVERY_ROW = Q()


def found(**options) -> dict[str, str]:
    """What the checks say, by id; each with a hint. With ``databases``, they ask the servers."""
    messages = run_checks(tags=[checks.TAG], **options)
    assert all(message.hint for message in messages)
    return {message.id.removeprefix("notifications_counter."): f"{message.msg} {message.hint}" for message in messages}


def deployed() -> dict[str, str]:
    return found(include_deployment_checks=True, databases=["default"])


def cache(location="redis://somewhere:6379/1", backend=REDIS, **options):
    return {"BACKEND": backend, "LOCATION": location, "OPTIONS": {"SOCKET_TIMEOUT": 1, **options}}


# --------------------------------------------------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "The value of NOTIFICATIONS_COUNTER must be a dict, not []."),
        ({"SHARD": 1}, "has an unknown entry 'SHARD'. Did you mean 'SHARDS'?"),
        ({"SHARDS": "5"}, "NOTIFICATIONS_COUNTER['SHARDS'] must be a positive integer, not '5'."),
        ({"MAX_TRANSACTION_AGE": 0}, "['MAX_TRANSACTION_AGE'] must be a number of seconds, at least 60, not 0."),
        ({"HEAL_AFTER": math.inf}, "['HEAL_AFTER'] must be a non-negative number of seconds, not inf."),
        ({"KEY_PREFIX": "{x}"}, "['KEY_PREFIX'] must be a non-empty string without braces, not '{x}'."),
        ({"COUNTERS": ["open_tasks"]}, "['COUNTERS'] must be a list of distinct names of built-in counters (unread, "),
        ({"COUNTERS": ["unread", "unseen"], "CACHE_ALIAS": "default"}, None),
    ],
)
def test_settings(value, text):
    with override_settings(NOTIFICATIONS_COUNTER=value):
        messages = found()
    assert messages.keys() == ({"E001"} if text else set())
    assert text is None or text in messages["E001"]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"BACKEND": LOCMEM}, "is not a django-redis cache in CACHES"),
        ({"LOCATION": "127.0.0.1:6379"}, "is not the URL of a Redis"),
        ({"LOCATION": ["redis://g/1", "h:6379"]}, "is not the URL of a Redis"),
        ({"LOCATION": "redis://:p%2Fw@h/1"}, None),
        ({"LOCATION": "unix://u:p@/run/redis@1/s.sock?db=1"}, None),
        ({"OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"}}, "with the CLIENT_CLASS"),
        ({"OPTIONS": {"CLIENT_CLASS": "django_redis.client.NoClient"}}, "with the CLIENT_CLASS"),
        ({"OPTIONS": {"CLIENT_CLASS": "django_redis.client.SentinelClient"}}, None),
    ],
)
def test_the_cache(changed, text):
    with override_settings(CACHES={"default": cache() | changed}):
        assert (text or "") in found().get("E002", "")
        assert ("E002" in found()) == (text is not None)


@pytest.mark.parametrize("url", ["redis://:{}/x@h:6379/1", "redis://:12#{}@h:6379/1", "user:{}@h:6379"])
def test_a_location_with_a_password_is_never_shown(url):
    with override_settings(CACHES={"default": cache(url.format(SECRET))}):
        assert "Percent-encode" in found()["E002"]
        assert SECRET not in str(found())
        with pytest.raises(SystemCheckError) as caught:
            call_command("flush_counters", "--check", skip_checks=False)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "options", "good"),
    [
        ("", {"SOCKET_TIMEOUT": 0.1}, False),
        ("", {"SOCKET_TIMEOUT": 0.1, "SOCKET_CONNECT_TIMEOUT": 2}, False),
        ("", {"SOCKET_TIMEOUT": 0.1, "SOCKET_CONNECT_TIMEOUT": 1}, True),
        ("?socket_timeout=0.1", {"CONNECTION_POOL_KWARGS": {"socket_connect_timeout": 0.1}}, True),
    ],
)
def test_a_reply_may_take_long(query, options, good):
    with override_settings(CACHES={"default": {**cache(f"redis://h/0{query}"), "OPTIONS": options}}):
        assert ("W002" not in found(include_deployment_checks=True)) == good
        assert "W002" not in found()


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (cache("redis://localhost"), cache("redis://127.0.0.1:6379/0"), True),
        (cache("unix:///run/redis?db=1"), cache(["redis://g/1", "unix:///run/redis?db=1"]), True),
        (cache("redis://h/1"), cache("redis://h", "django.core.cache.backends.redis.RedisCache", db=1), True),
        (cache("redis://h/1"), cache("redis://h", CONNECTION_POOL_KWARGS={"db": 1}), True),
        (cache("redis://h/1"), cache(["redis://h/2", "redis://g/1"]), False),
        (cache("redis://h/1"), cache("unique-snowflake", LOCMEM), False),
    ],
)
def test_another_cache_is_in_the_same_database(one, other, shared):
    with override_settings(CACHES={"default": one, "other": other}):
        assert ("W003" in found()) == shared


@pytest.mark.django_db
def test_the_default_cache_is_mentioned_only_for_a_deployment():
    assert "W003" not in found()
    assert "W003" in found(include_deployment_checks=True)
    caches = {"default": {"BACKEND": LOCMEM}, "counters": cache()}
    with override_settings(CACHES=caches, NOTIFICATIONS_COUNTER={"CACHE_ALIAS": "counters"}):
        assert found(include_deployment_checks=True).keys() <= {"W002"}  # the timeouts of the tests


# --------------------------------------------------------------------------------------------------------- databases
@pytest.mark.skipif(connection.vendor != "sqlite", reason="is about SQLite")
@pytest.mark.parametrize(
    ("mode", "good"), [("IMMEDIATE", True), ("exclusive", True), ("DEFERRED", False), (None, False)]
)
def test_transactions_of_sqlite(mode, good, monkeypatch):
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "transaction_mode", mode)
    assert ("W001" not in found()) == good


POSTGRES = {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": "5432", "NAME": "site"}
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (POSTGRES, {**POSTGRES, "HOST": "localhost", "PORT": 5432, "USER": "somebody"}, True),
        (POSTGRES, {**POSTGRES, "TEST": {"MIRROR": "default"}}, False),
        (POSTGRES, {**POSTGRES, "OPTIONS": {"options": "-c search_path=tenant"}}, False),
        (SQLITE, {**SQLITE, "NAME": Path("site.sqlite3").absolute()}, True),
        (SQLITE, POSTGRES, False),
        ({**SQLITE, "NAME": ":memory:"}, {**SQLITE, "NAME": ":memory:"}, False),
    ],
)
def test_two_aliases_of_one_database(one, other, same, monkeypatch):
    databases = ConnectionHandler({"default": one, "other": other})
    monkeypatch.setattr(checks.settings, "connections", databases)
    assert ("'other' in DATABASES is the same database as 'default'" in found().get("E007", "")) == same


@pytest.mark.parametrize(
    ("tenants", "shared", "refused"),
    [
        (["tests.accounts"], ["notifications_counter"], False),
        (["tests.tasks"], ["notifications_counter"], True),
        (["tests.tasks"], ["tests.tasks", "notifications_counter"], False),
    ],
)
def test_the_app_is_where_the_rows_of_tenants_are(tenants, shared, refused):
    with override_settings(TENANT_APPS=tenants, SHARED_APPS=shared):
        assert ("counts the tenants' rows" in found().get("E008", "")) == refused


# ---------------------------------------------------------------------------------------------------------- counters
@pytest.fixture
def declare(monkeypatch):
    """A function that declares a counter, the only one, and says what the checks think of it."""
    monkeypatch.setattr(declaration, "_declarations", {})
    monkeypatch.setattr(declaration, "_by_table", {})

    def declare(
        source,
        owner="user",
        condition=EVERY_ROW,
        totals=UserNotificationsCount,
        field="unread_count",
        name="x",
        **others,
    ):
        declaration._declarations.pop(name, None)
        counter = make_counter(
            name, source="x.Y", owner=owner, condition=condition, totals="x.Z", field=field, **others
        )
        vars(counter).update(source=source, totals=totals)
        return found()

    return declare


def model(name, *bases, module="tests.tasks.models", **body):
    return type(name, bases or (models.Model,), {"__module__": module, **body})


def to(owner, **options):
    return models.ForeignKey(owner, **{"on_delete": models.CASCADE, **options})


NO_CASCADE = {"on_delete": models.DO_NOTHING, "db_constraint": False}


def totals_with(options=NO_CASCADE, **fields):
    """A totals model of users."""
    user = models.OneToOneField(get_user_model(), primary_key=True, **options)
    # A field belongs to one model; the parameters of a test are made once.
    fields = {"unread_count": models.IntegerField(default=0), **{name: field.clone() for name, field in fields.items()}}
    return model("Total", BaseCount, user=user, **fields)


@pytest.mark.usefixtures("declare")
@pytest.mark.parametrize(
    "wrong",
    [{"source": "tusks.Task"}, {"totals": "tasks.Tusk"}, {"owner": "nobody"}, {"field": "nothing"}, {"sum": "no"},
     {"condition": Q(nothing=1)}],
    ids=lambda wrong: next(iter(wrong)),
)  # fmt: skip
def test_names_of_what_is_not_there(wrong):
    names = {"source": "tasks.Task", "owner": "project", "totals": "tasks.ProjectTaskCount", "field": "open_count"}
    make_counter("x", **{"condition": Q(), **names, **wrong})
    assert found().keys() == {"E003"}


@isolate_apps("tests.tasks")
def test_owners(declare):
    totals = apps.get_model("tasks.ProjectTaskCount")
    for source in ("tasks.UrgentTask", "tasks.RecurringTask"):
        assert (
            "Use tasks.Task as its source"
            in declare(apps.get_model(source), "project", Q(), totals, "open_count")["E003"]
        )
    Message = model("Message", user=to(get_user_model(), to_field="username"))
    assert "refers to 'username'" in declare(Message)["E003"]
    text = "is neither a foreign key nor several different columns"
    assert text in declare(Issue, "closed", Q(), ProjectIssueCount, "open_count")["E003"]
    for owner in ((), ("shop",), ("shop", "shop")):
        assert text in declare(Vote, owner, totals=VoteCount, field="vote_count")["E003"]


class Stripped(models.CharField):
    """What it stores, Python has before."""

    def to_python(self, value):
        return super().to_python(value).strip()


class Lowered(models.CharField):
    """A new row has another owner in the database than its instance."""

    def get_prep_value(self, value):
        return super().get_prep_value(value).lower()


class Hidden(models.IntegerField):
    def from_db_value(self, value, expression, connection):
        return f"#{value}"


@pytest.mark.parametrize(
    ("field", "good"),
    [
        (models.DecimalField(primary_key=True, max_digits=5, decimal_places=2), False),
        (Stripped(primary_key=True), True),
        (Lowered(primary_key=True), False),
        (Hidden(primary_key=True), False),
    ],
)
@isolate_apps("tests.tasks")
def test_keys_of_owners(declare, field, good):
    Owner = model("Owner", id=field)
    key = models.OneToOneField(Owner, primary_key=True, **NO_CASCADE)
    totals = model("Total", BaseCount, owner=key, unread_count=models.IntegerField(default=0))
    assert declare(model("Message", user=to(Owner)), totals=totals).keys() == (set() if good else {"E003"})


@pytest.mark.parametrize(
    ("column", "good"),
    [
        (models.PositiveSmallIntegerField(null=True), True),
        (models.GeneratedField(expression=F("a") * 2, output_field=models.IntegerField(), db_persist=True), True),
        (models.GeneratedField(expression=F("a") / 2, output_field=models.FloatField(), db_persist=True), False),
        (models.ForeignKey(Post, on_delete=models.CASCADE, related_name="+"), False),
        (Hidden(), False),
    ],
    ids=lambda value: type(value).__name__,
)
@isolate_apps("tests.tasks")
def test_columns_of_a_sum(declare, column, good):
    Message = model("Message", user=to(get_user_model()), a=models.IntegerField(), size=column.clone())
    Child = model("Child", Message, recipient=to(get_user_model(), related_name="+"))
    total = totals_with(unread_count=models.BigIntegerField(default=0))
    assert declare(Message, totals=total, sum="size").keys() == (set() if good else {"E003"})
    assert "E003" in declare(Child, "recipient", totals=total, sum="size")


NUMBER = models.IntegerField(default=0)


@pytest.mark.parametrize(
    ("fields", "good"),
    [
        ({}, True),
        ({"options": {"on_delete": models.DO_NOTHING}}, False),
        ({"options": {"on_delete": models.CASCADE, "db_constraint": False}}, False),
        ({"unread_count": models.BigIntegerField(default=int)}, True),
        ({"unread_count": models.IntegerField(db_default=0)}, True),
        ({"unread_count": models.PositiveIntegerField(default=0)}, False),
        ({"unread_count": models.IntegerField()}, False),
        ({"unread_count": models.IntegerField(default=0, null=True)}, False),
        ({"other": models.DateField(auto_now_add=True)}, True),
        ({"other": models.IntegerField()}, False),
        ({"other": models.UUIDField(default=uuid.uuid4, unique=True)}, False),
    ],
)
@isolate_apps("tests.tasks")
def test_totals(declare, fields, good):
    assert declare(Notification, totals=totals_with(**fields)).keys() == (set() if good else {"E004"})


def test_totals_of_other_owners_and_of_larger_numbers(declare):
    assert declare(Task, "project", field="unread_count").keys() == {"E004"}
    sums = declare(Vote, ("shop", "item", "stars"), totals=VoteCount, field="vote_count", sum="points")
    assert sums.keys() == {"E004"}


@pytest.mark.parametrize(("field", "problem"), [("urgent_count", ""), ("open_count", "is the field of both counter")])
def test_totals_of_two_counters(declare, field, problem):
    assert declare(Issue, "project", Q(closed=False), ProjectIssueCount, "open_count") == {}
    messages = declare(Issue, "project", Q(), ProjectIssueCount, field, name="y")
    assert messages.keys() == ({"E004"} if problem else set())
    assert problem in messages.get("E004", "")


def totals_of_votes(**changed):
    """A totals model like VoteCount, but for this."""
    names = [name for name in ("shop", "item", "stars") if changed.get(name, "") is not None]
    body = {
        "pk": models.CompositePrimaryKey(*names),
        "shop": models.IntegerField(),
        "item": models.BigIntegerField(),
        "stars": models.SmallIntegerField(),
        "vote_count": models.IntegerField(default=0),
        **changed,
    }
    with isolate_apps("tests.composite_owners"):
        return model(
            "Votes", BaseCount, module=COMPOSITE, **{name: what for name, what in body.items() if what is not None}
        )


def unique(*names, **options):
    return type("Meta", (), {"constraints": [models.UniqueConstraint(fields=names, name="one", **options)]})


BY_NUMBER = {"pk": None, "id": models.BigAutoField(primary_key=True)}


@pytest.mark.parametrize(
    ("changed", "good"),
    [
        ({}, True),
        ({"pk": models.CompositePrimaryKey("shop", "item")}, False),
        ({**BY_NUMBER, "Meta": unique("item", "shop", "stars")}, True),
        ({**BY_NUMBER, "Meta": unique("shop", "stars")}, False),
        ({**BY_NUMBER, "Meta": unique("shop", "item", "stars", condition=Q(shop=1))}, False),
        ({**BY_NUMBER, "id": models.AutoField(primary_key=True), "Meta": unique("shop", "item", "stars")}, False),
        (BY_NUMBER, False),
        ({"stars": models.IntegerField()}, False),
        ({"shop": models.IntegerField(unique=True)}, False),
    ],
)
def test_totals_of_several_columns(declare, changed, good):
    messages = declare(Vote, ["shop", "item", "stars"], totals=totals_of_votes(**changed), field="vote_count")
    assert messages.keys() == (set() if good else {"E004"})


@pytest.mark.parametrize(("options", "good"), [({}, True), ({"db_constraint": True}, False)])
@isolate_apps("tests.composite_owners")
def test_foreign_keys_of_totals_of_several_columns(declare, options, good):
    totals = model(
        "Alerts",
        BaseCount,
        module=COMPOSITE,
        pk=models.CompositePrimaryKey("organization", "recipient"),
        organization=to(Organization, related_name="+", **{**NO_CASCADE, **options}),
        recipient=to(get_user_model(), related_name="+", **NO_CASCADE),
        unread_count=models.IntegerField(default=0),
    )
    assert declare(Alert, ("organization", "recipient"), totals=totals).keys() == (set() if good else {"E004"})


@pytest.mark.parametrize(("owner", "ids"), [(("user", "app_name"), set()), (("app_name", "user"), {"E004"})])
def test_counters_with_the_same_totals_agree_on_their_owners(declare, owner, ids):
    assert declare(CourseNotification, ("user", "app_name"), totals=AppCount) == {}
    assert declare(CourseNotification, owner, totals=AppCount, name="y", field="unseen_count").keys() == ids


# ----------------------------------------------------------------------------------------------------------- changes
@pytest.mark.parametrize(
    ("condition", "what"),
    [
        (Q(user__is_active=True), "other rows"),
        (Q(Exists(Notification.objects.filter(user=OuterRef("user")))), "other rows"),
        (Q(pk__in=Notification.objects.values("pk")), "other rows"),
        (Q(created_at__lt=Now()), "the time of the query, or on chance"),
        (Q(pk__lt=Random()), "the time of the query, or on chance"),
        (Q(created_at__year=2026), "the active time zone"),
        (Q(Exact(TruncMonth("created_at"), datetime(2026, 1, 1, tzinfo=UTC))), "the active time zone"),
        (Q(RawSQL("read_at IS NULL", (), output_field=models.BooleanField())), "raw SQL"),
        (Q(user__isnull=False), None),
        (~Q(kind="x") | Q(data__urgent=True), None),
        (Q(created_at__gte=datetime(2026, 1, 1, tzinfo=UTC)), None),
        (Q(Exact(ExtractYear("created_at", tzinfo=UTC), 2026)), None),
    ],
)
def test_conditions(declare, condition, what):
    messages = declare(Notification, condition=condition)
    assert messages.keys() == ({"E005"} if what else set())
    assert what is None or f"because its condition depends on {what}" in messages["E005"]


def test_a_condition_on_the_columns_of_a_parent(declare):
    assert "E005" in declare(RecurringTask, "project", Q(done=False), ProjectTaskCount, "open_count")


class DatabaseOnDelete:
    """Stands in for that of Django 6.1."""

    def __call__(self, *args):
        raise NotImplementedError


DB_CASCADE = getattr(models, "DB_CASCADE", None) or DatabaseOnDelete()
DB_SET_NULL = getattr(models, "DB_SET_NULL", None) or DatabaseOnDelete()


@isolate_apps("tests.tasks")
def test_rows_that_the_database_changes(declare):
    """In a chain of them, it reaches the source by a foreign key of its own. Where Django ends the chain, the database
    refuses to delete what the source refers to."""
    thread = model("Thread", forum=to(model("Forum"), on_delete=DB_CASCADE))
    Message = model("Message", user=to(get_user_model()), thread=to(thread, on_delete=DB_CASCADE))
    Draft = model("Draft", user=to(get_user_model()), thread=to(thread))
    Note = model("Note", user=to(get_user_model(), on_delete=DB_SET_NULL, null=True))
    Memo = model("Memo", user=to(get_user_model(), on_delete=models.SET_NULL, null=True))
    assert "the database itself changes tasks.Message.thread when a row is deleted" in declare(Message)["E005"]
    assert [("E005" in declare(source)) for source in (Draft, Note, Memo)] == [False, True, False]


# ----------------------------------------------------------------------------------------------------------- servers
@pytest.mark.django_db(transaction=True)
def test_the_servers_of_the_tests_are_good():
    of_topics = {"W006"} if connection.vendor == "mysql" else set()  # they have texts as keys
    assert deployed().keys() - {"W002"} == {"W003"} | of_topics  # the timeouts of the tests are long


@pytest.mark.django_db(transaction=True)
def test_redis_is_asked_along_with_the_database():
    url = f"redis://app:{SECRET}@127.0.0.1:{(port := servers.free_port())}/3"
    with override_settings(CACHES={"default": cache(url)}):
        assert found() == {}
        assert deployed()["W004"] == found(databases=["default"])["W004"]
        assert f"The cache is at 127.0.0.1:{port}, database 3: start Redis there" in deployed()["W004"]
        call_command("migrate", skip_checks=False, verbosity=0, stderr=(errors := io.StringIO()))
        assert "is unreachable" in errors.getvalue()
        assert SECRET not in errors.getvalue()


@pytest.mark.parametrize(
    ("changed", "ids"),
    [
        ({"maxmemory_policy": "allkeys-random", "maxmemory": "0"}, []),
        ({"maxmemory_policy": "allkeys-random", "maxmemory": "9"}, ["E009"]),
        ({"maxmemory_policy": "volatile-lru"}, []),
        ({"master_replid": ""}, ["W005"]),
    ],
)
def test_what_redis_says_of_itself(changed, ids):
    info = {"run_id": "a", "master_replid": "b", "maxmemory_policy": "noeviction", "maxmemory": "9", **changed}
    assert [message.id.partition(".")[2] for message in check_server(info)] == ids


@pytest.fixture
def loose():
    """A collation that takes some texts for equal."""
    if connection.vendor != "postgresql":
        yield {"mysql": "utf8mb4_general_ci", "sqlite": "nocase"}[connection.vendor]
        return
    with connection.cursor() as cursor:
        try:
            cursor.execute("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        except NotSupportedError:
            pytest.skip("A PostgreSQL that was built without ICU tells all texts apart.")
        yield "loose"
        cursor.execute("DROP COLLATION loose")


@pytest.mark.django_db(transaction=True)
def test_texts_that_the_database_takes_for_equal(declare, loose):
    for collation, ids in ((loose, {"W006"}), (EXACT, set())):
        with isolate_apps("tests.tasks"):
            Owner = model("Owner", id=models.CharField(max_length=9, primary_key=True, db_collation=collation))
            key = models.OneToOneField(Owner, primary_key=True, related_name="+", **NO_CASCADE)
            Row, Total = model("Row", user=to(Owner)), model("Total", BaseCount, user=key, number=NUMBER.clone())
        with connection.schema_editor() as editor:
            for each in (Owner, Row, Total):
                editor.create_model(each)
        try:
            assert declare(Row, totals=Total, field="number") == {}
            assert deployed().keys() & {"W006"} == ids
        finally:
            with connection.schema_editor() as editor:
                for each in (Total, Row, Owner):
                    editor.delete_model(each)
