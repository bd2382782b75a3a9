import math
import uuid
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import NotSupportedError, connection, models
from django.db.models import Exists, F, OuterRef, Q, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import ExtractYear, Now, Random, TruncMonth
from django.db.models.lookups import Exact
from django.db.utils import ConnectionHandler
from django.test.utils import isolate_apps, override_settings

import servers
from notifications_counter import checks
from notifications_counter.buffer.client import client_of
from notifications_counter.declaration import declaration
from notifications_counter.exceptions import ConfigurationError
from notifications_counter.models import BaseCount, Notification, UserNotificationsCount
from notifications_counter.writes.totals import listen
from tests.composite_owners.models import EXACT, Alert, AppCount, CourseNotification, Organization, Vote, VoteCount
from tests.support import make_counter
from tests.tasks.models import Issue, Post, ProjectIssueCount, ProjectTaskCount, RecurringTask, Task

REDIS = "django_redis.cache.RedisCache"
EVERY_ROW = Q()
COMPOSITE = "tests.composite_owners.models"
LOCMEM = "django.core.cache.backends.locmem.LocMemCache"


class OtherClient:
    """As that of a package for another server may be: its base is not a client of django-redis."""


def found(tag: str = checks.TAG, deploy: bool = False) -> dict[str, str]:
    """What the checks say, by id; each with a hint."""
    messages = run_checks(tags=[tag], include_deployment_checks=deploy)
    assert all(message.hint for message in messages)
    return {
        message.id.removeprefix("notifications_counter."): f"{message.msg} {message.hint or ''}" for message in messages
    }


def cache(location="redis://somewhere:6379/1", backend=REDIS, **options):
    return {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}


def test_nothing_is_wrong_with_the_settings_of_the_tests():
    assert found() == {}


# --------------------------------------------------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], {"E001": "The value of NOTIFICATIONS_COUNTER must be a dict, not []."}),
        ({"FLUSH_CHUNKS": 1}, {"E002": "has an unknown entry 'FLUSH_CHUNKS'. Did you mean 'FLUSH_CHUNK'?"}),
        ({"XYZ": 1}, {"E002": "has an unknown entry 'XYZ'. The known entries are: CACHE_ALIAS, "}),
        ({"FLUSH_CHUNK": "5"}, {"E001": "NOTIFICATIONS_COUNTER['FLUSH_CHUNK'] must be a positive integer, not '5'."}),
        ({"SHARDS": 0}, {"E001": "NOTIFICATIONS_COUNTER['SHARDS'] must be a positive integer, not 0."}),
        (
            {"MAX_TRANSACTION_AGE": 0},
            {"E001": "['MAX_TRANSACTION_AGE'] must be a number of seconds, at least 60, not 0."},
        ),
        ({"HEAL_AFTER": -1}, {"E001": "['HEAL_AFTER'] must be a non-negative number of seconds, not -1."}),
        ({"HEAL_AFTER": math.inf}, {"E001": "['HEAL_AFTER'] must be a non-negative number of seconds, not inf."}),
        ({"KEY_PREFIX": "{x}"}, {"E001": "['KEY_PREFIX'] must be a non-empty string without braces, not '{x}'."}),
        (
            {"COUNTERS": "unread"},
            {"E001": "a list of distinct names of built-in counters (unread, unseen, unread_by_kind), not 'unread'."},
        ),
        ({"COUNTERS": ["unread", "unread"]}, {"E001": "['COUNTERS'] must be a list of distinct names of built-in "}),
        ({"COUNTERS": ["unread", 3]}, {"E001": "['COUNTERS'] must be a list of distinct names of built-in counters "}),
        ({"COUNTERS": ["open_tasks"]}, {"E001": "['COUNTERS'] must be a list of distinct names of built-in counters "}),
        ({"COUNTERS": ["unseen"]}, {}),
        ({"COUNTERS": ["unread", "unseen"]}, {}),
    ],
)
def test_settings(value, expected):
    with override_settings(NOTIFICATIONS_COUNTER=value):
        messages = found()
    assert messages.keys() == expected.keys()
    for id_, text in expected.items():
        assert text in messages[id_]


@pytest.mark.parametrize("alias", ["nowhere", 3, None])
def test_the_cache_is_missing(alias):
    with override_settings(NOTIFICATIONS_COUNTER={"CACHE_ALIAS": alias}):
        assert "is not a django-redis cache in CACHES" in found()["E003"]


@pytest.mark.parametrize("backend", [LOCMEM, "django.core.cache.backends.redis.RedisCache", "no.such.Cache"])
def test_the_cache_is_not_of_django_redis(backend):
    with override_settings(CACHES={"default": cache(backend=backend)}):
        assert "BACKEND 'django_redis.cache.RedisCache'" in found()["E003"]
        assert found(checks.REDIS_TAG, deploy=True) == {}


@pytest.mark.parametrize(
    ("location", "good"),
    [
        ("127.0.0.1:6379", False),
        ("", False),
        ([], False),
        (["redis://g/1", "h:6379"], False),
        ("valkey://h:6379/2", False),
        ("redis://:p%2Fw@h/1", True),
        ("redis://h/1?client_name=a@b", True),
        ("unix://u:p@/run/redis@1/s.sock?db=1", True),
    ],
)
def test_a_location_is_a_url_of_redis(location, good):
    with override_settings(CACHES={"default": cache(location)}):
        assert ("is not the URL of a Redis" in found().get("E004", "")) != good


SECRET = "hunt3r-two"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:{}/x@h:6379/1",
        "redis://:12#{}@h:6379/1",
        "redis://user:12?{}@h/1",
        "redis://user:12/{}@h/1",
        "rediss://:[{}@h",
        "unix://user:12/{}@/run/redis.sock",
        "reds://:{}@h/1",
        "user:{}@h:6379",
    ],
)
@pytest.mark.parametrize("backend", [REDIS, LOCMEM])
def test_a_location_with_a_password_is_never_shown(url, backend):
    with override_settings(CACHES={"default": cache(url.format(SECRET), backend=backend)}):
        texts = found()
        assert SECRET not in str(texts)
        if backend == REDIS:
            assert "Percent-encode" in texts["E004"]
            with pytest.raises(SystemCheckError) as caught:
                call_command("flush_counters", "--check", skip_checks=False)
            assert SECRET not in str(caught.value)


@pytest.mark.parametrize("alias", [f"redis://:{SECRET}@h/1", cache(OPTIONS={"PASSWORD": SECRET})])
def test_a_cache_in_place_of_its_name(alias):
    with override_settings(NOTIFICATIONS_COUNTER={"CACHE_ALIAS": alias}):
        texts = found()
        assert texts.keys() & {"E001", "E003"}
        assert SECRET not in str(texts)
        with pytest.raises((ConfigurationError, TypeError)) as caught:
            client_of(alias)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["NOTIFICATION_COUNTER", "NOTIFICATIONS_COUNTERS", "NOTIFICATIONS_COUNTR"])
def test_the_name_of_the_setting_is_misspelt(name):
    with override_settings(**{name: {"SHARDS": 4}}):
        assert found()["W002"].startswith(f"The {name} setting has no effect on the counters. Rename it")


@pytest.mark.parametrize(
    ("name", "entry"), [("CACHE_ALIAS", "'CACHE_ALIAS'"), ("CACHE_ALIASS", "'CACHE_ALIAS'"), ("X", "'…'")]
)
def test_an_entry_as_a_setting_of_its_own(name, entry):
    with override_settings(**{f"NOTIFICATIONS_COUNTER_{name}": "x"}):
        assert found()["W002"].startswith(f"The NOTIFICATIONS_COUNTER_{name} setting has no effect on the counters.")
        assert f"NOTIFICATIONS_COUNTER = {{{entry}: …}}" in found()["W002"]


@pytest.mark.parametrize(
    ("client", "good"),
    [
        ("django_redis.client.DefaultClient", True),
        ("django_redis.client.HerdClient", True),
        ("django_redis.client.SentinelClient", True),
        ("django_redis.client.ShardClient", False),
        ("django_redis.client.NoClient", False),
        ("django_redis.client.default.suppress", False),
        (f"{__name__}.OtherClient", False),
    ],
)
def test_clients_of_the_cache(client, good):
    with override_settings(CACHES={"default": cache(CLIENT_CLASS=client)}):
        assert (client in found().get("E005", "")) != good


@pytest.mark.parametrize(
    ("location", "options", "limited"),
    [
        ("redis://h/0", {"CONNECTION_POOL_KWARGS": {"socket_timeout": None}}, False),
        ("redis://h/0", {"CONNECTION_POOL_KWARGS": {"socket_timeout": 1}}, True),
        ("redis://h/0", {"SOCKET_TIMEOUT": 1}, True),
        ("redis://h/0?socket_timeout=1", {"CONNECTION_POOL_KWARGS": {"socket_timeout": None}}, True),
    ],
)
def test_a_reply_may_take_for_ever(location, options, limited):
    with override_settings(CACHES={"default": cache(location, **options)}):
        assert ("W003" not in found()) == limited


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (cache("redis://h/1"), cache("redis://h:6379/1"), True),
        (cache("redis://localhost"), cache("redis://127.0.0.1:6379/0"), True),
        (cache("redis://h/1"), cache(["redis://g/1", "redis://h/1"]), True),
        (cache("unix:///run/redis?db=1"), cache("unix:///run/redis?db=1"), True),
        (cache("redis://h/1"), cache("redis://h", "django.core.cache.backends.redis.RedisCache", db=1), True),
        (cache("redis://h/1"), cache("redis://h", CONNECTION_POOL_KWARGS={"db": 1}), True),
        (cache("redis://h"), cache("redis://h", db=1), True),  # django-redis does not look there
        (cache("redis://h/1"), cache("redis://h/1", "django.core.cache.backends.redis.RedisCache", db=2), True),
        (cache("redis://h/1"), cache("redis://h/2"), False),
        (cache("redis://h/1"), cache("redis://g/1"), False),
        (cache("redis://h:6379/1"), cache("redis://h:6380/1"), False),
        (cache("unix:///run/redis?db=1"), cache("unix:///run/other?db=1"), False),
        (cache("redis://h/1"), cache("unique-snowflake", LOCMEM), False),
        (cache("redis://h/1"), {"BACKEND": LOCMEM}, False),
    ],
)
def test_another_cache_is_in_the_same_database(one, other, shared):
    with override_settings(CACHES={"default": one, "other": other}):
        assert ("W004" in found()) == shared


@pytest.mark.django_db
def test_the_default_cache_is_mentioned_only_for_a_deployment():
    assert "W004" not in found()
    assert "W004" in found(deploy=True)
    caches = {"default": {"BACKEND": LOCMEM}, "counters": cache(SOCKET_TIMEOUT=1)}
    with override_settings(CACHES=caches, NOTIFICATIONS_COUNTER={"CACHE_ALIAS": "counters"}):
        assert found(deploy=True) == {}


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
    ("tenants", "shared", "refused"),
    [
        (["tests.accounts", "notifications_counter"], [], False),
        (["tests.accounts"], ["notifications_counter"], False),
        (["tests.tasks"], ["notifications_counter"], True),
        (["tests.tasks"], ["tests.tasks", "notifications_counter"], False),
    ],
)
def test_the_app_is_where_the_rows_of_tenants_are(tenants, shared, refused):
    with override_settings(TENANT_APPS=tenants, SHARED_APPS=shared):
        assert ("counts the tenants' rows" in found().get("E020", "")) == refused


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (POSTGRES, {**POSTGRES, "HOST": "localhost", "PORT": 5432, "USER": "somebody"}, True),
        (POSTGRES, {**POSTGRES, "TEST": {"MIRROR": "default"}}, False),
        (POSTGRES, {**POSTGRES, "OPTIONS": {"options": "-c search_path=tenant"}}, False),
        (POSTGRES, {**POSTGRES, "HOST": "replica"}, False),
        (POSTGRES, {**POSTGRES, "NAME": "other"}, False),
        (POSTGRES, {**POSTGRES, "PORT": "5433"}, False),
        (SQLITE, {**SQLITE, "NAME": Path("site.sqlite3").absolute()}, True),
        (SQLITE, {**SQLITE, "NAME": "other.sqlite3"}, False),
        (SQLITE, POSTGRES, False),
        ({**SQLITE, "NAME": ":memory:"}, {**SQLITE, "NAME": ":memory:"}, False),
    ],
)
def test_two_aliases_of_one_database(one, other, same, monkeypatch):
    databases = ConnectionHandler({"default": one, "other": other})
    monkeypatch.setattr(checks.settings, "connections", databases)
    assert ("'other' in DATABASES is the same database as 'default'" in found().get("E019", "")) == same


# ---------------------------------------------------------------------------------------------------------- counters
@pytest.fixture
def declare(monkeypatch):
    """A function that declares a counter, the only one, and says what the checks think of it."""

    def declare(
        source,
        owner="user",
        condition=EVERY_ROW,
        totals=UserNotificationsCount,
        field="unread_count",
        batch_field="flushed_batch",
        sum=None,
    ):
        monkeypatch.setattr(declaration, "_declarations", {})
        monkeypatch.setattr(declaration, "_by_table", {})
        columns = {"field": field, "batch_field": batch_field, "sum": sum}
        counter = make_counter("x", source="x.Y", owner=owner, condition=condition, totals="x.Z", **columns)
        vars(counter).update(source=source, totals=totals)
        return found()

    return declare


def model(name, *bases, module="tests.tasks.models", **body):
    return type(name, bases or (models.Model,), {"__module__": module, **body})


def to(owner, **options):
    return models.ForeignKey(owner, **{"on_delete": models.CASCADE, **options})


NO_CASCADE = {"on_delete": models.DO_NOTHING, "db_constraint": False}


def notifications() -> models.QuerySet:
    return Notification.objects.filter(user=OuterRef("user"))


@pytest.mark.parametrize(
    ("condition", "what"),
    [
        (Q(user__is_active=True), "other rows"),
        (Q(Exists(notifications())), "other rows"),
        (Q(pk__in=Notification.objects.values("pk")), "other rows"),
        (Q(created_at__lt=Now()), "the time of the query, or on chance"),
        (Q(pk__lt=Random()), "the time of the query, or on chance"),
        (Q(created_at__year=2026), "the active time zone"),
        (Q(read_at__date__gte=date(2026, 1, 1)), "the active time zone"),
        (Q(read_at__hour=3) | Q(kind="x"), "the active time zone"),
        (Q(Exact(TruncMonth("created_at"), datetime(2026, 1, 1, tzinfo=UTC))), "the active time zone"),
        (Q(RawSQL("read_at IS NULL", (), output_field=models.BooleanField())), "raw SQL"),
    ],
)
def test_conditions_that_cannot_be_followed(declare, condition, what):
    messages = declare(Notification, condition=condition)
    assert messages.keys() == {"E009"}
    assert f"depends on {what}" in messages["E009"]


@pytest.mark.parametrize(
    "condition",
    [
        Q(),
        Q(read_at=None),
        Q(user__isnull=False, user__gt=0),
        ~Q(kind="x") | Q(data__urgent=True),
        Q(created_at__gte=datetime(2026, 1, 1, tzinfo=UTC)),
        Q(Exact(ExtractYear("created_at", tzinfo=UTC), 2026)),
    ],
)
def test_conditions_that_can_be_followed(declare, condition):
    if "user__gt" in str(condition) and get_user_model()._meta.pk.get_internal_type() == "UUIDField":
        pytest.skip("no order of UUIDs and numbers")
    assert declare(Notification, condition=condition) == {}


@pytest.mark.parametrize(
    ("condition", "column"), [(Q(level=0), "level"), (Q(depth=0), None), (Q(left__lt=5) | Q(depth=1), "left")]
)
@isolate_apps("tests.tasks")
def test_conditions_on_the_place_in_a_tree_of_mptt(declare, condition, column):
    # As the class of the package, which the check does not import.
    meta = SimpleNamespace(left_attr="left", right_attr="rght", tree_id_attr="tree_id", level_attr="level")
    columns = {name: models.PositiveIntegerField() for name in ("level", "left", "depth")}
    about = declare(model("Node", _mptt_meta=meta, user=to(get_user_model()), **columns), condition=condition)
    assert list(about) == (["W005"] if column else [])
    assert column is None or f"tasks.Node.{column}" in about["W005"]


def test_a_condition_on_the_columns_of_a_parent(declare):
    assert "E009" in declare(RecurringTask, "project", Q(done=False), ProjectTaskCount, "open_count")


@isolate_apps("tests.tasks")
def test_without_time_zones_datetimes_are_as_they_are_stored(declare):
    with override_settings(USE_TZ=False):
        assert declare(Notification, condition=Q(created_at__year=2026)) == {}


class DatabaseOnDelete:
    """Stands in for that of Django 6.1."""

    def __call__(self, *args):
        raise NotImplementedError


DB_CASCADE = getattr(models, "DB_CASCADE", None) or DatabaseOnDelete()
DB_SET_NULL = getattr(models, "DB_SET_NULL", None) or DatabaseOnDelete()


@pytest.mark.parametrize(
    ("on_delete", "good"),
    [
        *((kind, True) for kind in (models.CASCADE, models.PROTECT, models.SET_NULL, models.SET(None))),
        *((kind, False) for kind in (DB_CASCADE, DB_SET_NULL)),
    ],
)
@isolate_apps("tests.tasks")
def test_owners_that_a_deletion_sets(declare, on_delete, good):
    user = to(get_user_model(), on_delete=on_delete, null=True, default=None)
    assert ("E014" not in declare(model("Message", user=user))) == good


@isolate_apps("tests.tasks")
def test_rows_that_the_database_deletes_along_with_others(declare):
    """In a chain of them, it reaches the source by a foreign key of its own. Where Django ends the chain, the database
    refuses to delete what the source refers to."""
    thread = model("Thread", forum=to(model("Forum"), on_delete=DB_CASCADE))
    Message = model("Message", user=to(get_user_model()), thread=to(thread, on_delete=DB_CASCADE))
    Draft = model("Draft", user=to(get_user_model()), thread=to(thread))
    assert "Message.thread when a row is deleted" in declare(Message)["E014"]
    assert "E014" not in declare(Draft)


class Stripped(models.CharField):
    """What it stores, Python has before."""

    def to_python(self, value):
        return super().to_python(value).strip()


class Lowered(models.CharField):
    """A new row has another owner in the database than its instance."""

    def get_prep_value(self, value):
        return super().get_prep_value(value).lower()


class Hidden(models.IntegerField):
    """A key that Python sees as a text."""

    def from_db_value(self, value, expression, connection):
        return f"#{value}"


@pytest.mark.parametrize(
    ("field", "good"),
    [
        (models.DecimalField(primary_key=True, max_digits=5, decimal_places=2), False),
        (models.DateTimeField(primary_key=True), False),
        (models.FloatField(primary_key=True), False),
        (models.PositiveSmallIntegerField(primary_key=True), True),
        (models.SlugField(primary_key=True), True),
        (models.UUIDField(primary_key=True), True),
        (Stripped(primary_key=True), True),
        (Lowered(primary_key=True), False),
        (Hidden(primary_key=True), False),
    ],
)
@isolate_apps("tests.tasks")
def test_owners_with_keys_of_every_kind(declare, field, good):
    Owner = model("Owner", id=field)
    key = models.OneToOneField(Owner, primary_key=True, **NO_CASCADE)
    totals = model("Total", BaseCount, owner=key, unread_count=models.IntegerField(default=0))
    assert declare(model("Message", user=to(Owner)), totals=totals).keys() == (set() if good else {"E012"})


def test_a_counter_may_count_a_plain_model(declare):
    class_ = apps.get_model("tasks.TopicPostCount")
    assert declare(Post, "topic", Q(hidden=False), class_, "visible_count") == {}


@pytest.mark.parametrize(
    "names",
    [{"owner": "nobody"}, {"field": "nothing"}, {"batch_field": "nothing"}, {"condition": Q(nothing=1)}],
    ids=lambda names: next(iter(names)),
)
def test_names_of_what_is_not_there(declare, names):
    assert declare(Notification, **names).keys() == {"E006"}


@pytest.mark.parametrize("names", [{"source": "tasks.Tusk"}, {"source": "tusks.Task"}, {"totals": "tasks.Tusk"}])
def test_models_that_are_not_there(monkeypatch, names):
    monkeypatch.setattr(declaration, "_declarations", {})
    monkeypatch.setattr(declaration, "_by_table", {})
    models = {"source": "tasks.Task", "totals": "tasks.ProjectTaskCount", **names}
    make_counter("x", owner="project", condition=EVERY_ROW, field="open_count", **models)
    listen()
    assert found().keys() == {"E006"}


@pytest.mark.parametrize(
    ("options", "good"),
    [
        ({"on_delete": models.DO_NOTHING, "db_constraint": False}, True),
        ({"on_delete": models.DO_NOTHING}, False),
        ({"on_delete": models.CASCADE, "db_constraint": False}, False),
    ],
)
@isolate_apps("tests.tasks")
def test_totals(declare, options, good):
    user = models.OneToOneField(get_user_model(), primary_key=True, **options)
    totals = model("Total", BaseCount, user=user, unread_count=models.IntegerField(default=0))
    assert ("E008" not in declare(Notification, totals=totals)) == good


@pytest.mark.parametrize("source", ["tasks.UrgentTask", "tasks.RecurringTask"])
def test_sources_without_a_table_of_their_own(declare, source):
    totals = apps.get_model("tasks.ProjectTaskCount")
    found = declare(apps.get_model(source), "project", Q(), totals, "open_count")
    assert "Use tasks.Task as its source" in found["E007"]


def test_an_owner_that_is_no_foreign_key(declare):
    assert list(declare(Issue, "closed", Q(closed=False), ProjectIssueCount, "open_count")) == ["E010"]


def test_totals_of_other_owners(declare):
    assert declare(Task, "project", field="unread_count").keys() == {"E008"}


@pytest.mark.parametrize(
    ("field", "batch_field", "problem"),
    [
        ("urgent_count", "urgent_batch", None),
        ("urgent_count", "flushed_batch", "flushed_batch is both the batch_field of counter 'x' and the batch_field"),
        ("open_count", "urgent_batch", "open_count is both the field of counter 'x' and the field of counter 'y'."),
        ("flushed_batch", "urgent_batch", "flushed_batch is both the batch_field of counter 'x' and the field"),
        ("urgent_batch", "urgent_batch", "urgent_batch is both the field of counter 'y' and the batch_field"),
    ],
)
def test_totals_of_two_counters(declare, field, batch_field, problem):
    assert declare(Issue, "project", Q(closed=False), ProjectIssueCount, "open_count") == {}
    counter = make_counter(
        "y", source="x.Y", owner="project", condition=Q(), totals="x.Z", field=field, batch_field=batch_field
    )
    vars(counter).update(source=Issue, totals=ProjectIssueCount)
    messages = found()
    assert messages.keys() == ({"E016"} if problem else set())
    assert problem is None or problem in messages["E016"]


@isolate_apps("tests.tasks")
def test_an_owner_that_is_no_primary_key(declare):
    Message = model("Message", user=to(get_user_model(), to_field="username"))
    assert "refers to 'username'" in declare(Message)["E011"]


@pytest.mark.parametrize(
    ("count", "good"),
    [
        (models.IntegerField(default=0), True),
        (models.BigIntegerField(default=int), True),
        (models.IntegerField(db_default=0), True),
        (models.IntegerField(db_default=Value(0)), True),
        (models.PositiveIntegerField(default=0), False),
        (models.PositiveBigIntegerField(default=0), False),
        (models.FloatField(default=0), False),
        (models.IntegerField(), False),
        (models.IntegerField(default=1), False),
        (models.IntegerField(db_default=1), False),
        (models.IntegerField(default=0, null=True), False),
    ],
)
@isolate_apps("tests.tasks")
def test_columns_of_a_count(declare, count, good):
    assert ("E013" not in declare(Notification, totals=totals_with(unread_count=count))) == good


@pytest.mark.parametrize(
    ("column", "good"),
    [
        (models.PositiveSmallIntegerField(), True),
        (models.BigIntegerField(null=True), True),
        (models.GeneratedField(expression=F("a") * 2, output_field=models.IntegerField(), db_persist=True), True),
        (models.GeneratedField(expression=F("a") / 2, output_field=models.FloatField(), db_persist=True), False),
        (models.DecimalField(max_digits=5, decimal_places=2), False),
        (models.FloatField(), False),
        (models.BooleanField(), False),
        (models.DurationField(), False),
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
    assert declare(Message, totals=total, sum="size").keys() == (set() if good else {"E023"})
    assert "E023" in declare(Child, "recipient", totals=total, sum="size")
    assert "has no field named 'width'" in declare(Message, totals=total, sum="width")["E006"]


def test_a_sum_needs_a_large_column(declare):
    assert declare(Vote, ("shop", "item", "stars"), totals=VoteCount, field="vote_count", sum="points").keys() == {
        "E013"
    }


@pytest.mark.parametrize(
    ("batch", "good"),
    [
        (models.BigIntegerField(default=0), True),
        (models.BigIntegerField(), False),
        (models.IntegerField(default=0), False),
    ],
)
@isolate_apps("tests.tasks")
def test_columns_of_a_batch(declare, batch, good):
    totals = totals_with(unread_count=models.IntegerField(default=0), batch=batch)
    assert ("E013" not in declare(Notification, totals=totals, batch_field="batch")) == good


@pytest.mark.parametrize(
    ("other", "good"),
    [
        (models.CharField(max_length=9), True),
        (models.IntegerField(null=True), True),
        (models.IntegerField(db_default=1), True),
        (models.DateField(auto_now_add=True), True),
        (models.IntegerField(), False),
        (models.UUIDField(default=uuid.uuid4, unique=True), False),
    ],
)
@isolate_apps("tests.tasks")
def test_other_columns_of_totals(declare, other, good):
    totals = totals_with(unread_count=models.IntegerField(default=0), other=other)
    assert ("cannot be unique: other." in declare(Notification, totals=totals).get("E008", "")) != good


def totals_with(**fields):
    """A totals model of users."""
    user = models.OneToOneField(get_user_model(), primary_key=True, **NO_CASCADE)
    # A field belongs to one model; the parameters of a test are made once.
    fields = {name: field.clone() for name, field in fields.items()}
    return model("Total", BaseCount, user=user, **fields)


# ------------------------------------------------------------------------------------------------------------- Redis
def of_redis() -> dict[str, str]:
    return found(checks.REDIS_TAG, deploy=True)


@pytest.mark.django_db
@pytest.mark.parametrize("location", ["", "127.0.0.1:6379"])
def test_a_redis_without_a_url_is_not_asked(location):
    with override_settings(CACHES={"default": cache(location)}):
        assert of_redis() == {}
        with pytest.raises(ConfigurationError):
            _ = client_of("default").redis


@pytest.mark.django_db  # from Django 6 on, other checks ask the databases
def test_redis_is_asked_only_for_a_deployment():
    url = f"redis://app:secret@127.0.0.1:{(port := servers.free_port())}/3"
    with override_settings(CACHES={"default": cache(url, SOCKET_TIMEOUT=1)}):
        assert found() == {}
        call_command("check")
        assert "is unreachable" in of_redis()["W006"]
        assert f"The cache is at 127.0.0.1:{port}, database 3: correct its LOCATION" in of_redis()["W006"]
        assert "secret" not in of_redis()["W006"]


@pytest.mark.django_db(transaction=True)
def test_redis_is_good():
    assert of_redis() == {}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("policy", "memory", "good"),
    [
        ("allkeys-lru", "100mb", False),
        ("allkeys-random", "100mb", False),
        ("allkeys-lru", "0", True),
        ("volatile-lru", "100mb", True),
        ("noeviction", "100mb", True),
    ],
)
def test_redis_may_evict_the_buffer(policy, memory, good, settings):
    with servers.redis("--maxmemory-policy", policy, "--maxmemory", memory) as server:
        settings.CACHES = {"default": cache(server.url)}
        assert ("E021" not in of_redis()) == good


# -------------------------------------------------------------------------------------------- owners of several columns
def columns_of_a_vote():
    return {"shop": models.IntegerField(), "item": models.BigIntegerField(), "stars": models.SmallIntegerField()}


def totals_of_votes(**changed):
    """A totals model like VoteCount, but for this."""
    names = [name for name in ("shop", "item", "stars") if changed.get(name, "") is not None]
    body = {
        "pk": models.CompositePrimaryKey(*names),
        **columns_of_a_vote(),
        "vote_count": models.IntegerField(default=0),
        **changed,
    }
    body = {name: what for name, what in body.items() if what is not None}
    with isolate_apps("tests.composite_owners"):
        return model("Votes", BaseCount, module=COMPOSITE, **body)


def counted(**columns):
    """A model, and the totals of the owners that its columns are."""
    pk, number = models.CompositePrimaryKey(*columns), models.IntegerField(default=0)
    same = {name: field.clone() for name, field in columns.items()}
    with isolate_apps("tests.composite_owners"):
        source = model("Row", module=COMPOSITE, **columns)
        return source, model("RowCount", BaseCount, module=COMPOSITE, pk=pk, number=number, **same)


def unique(*names, **options):
    return type("Meta", (), {"constraints": [models.UniqueConstraint(fields=names, name="one", **options)]})


BY_NUMBER = {"pk": None, "id": models.BigAutoField(primary_key=True)}


@pytest.mark.parametrize(
    ("changed", "good"),
    [
        ({}, True),
        ({"pk": models.CompositePrimaryKey("stars", "shop", "item")}, True),
        ({"pk": models.CompositePrimaryKey("shop", "item")}, False),
        ({**BY_NUMBER, "Meta": unique("item", "shop", "stars")}, True),
        ({**BY_NUMBER, "Meta": unique("shop", "stars")}, False),
        ({**BY_NUMBER, "Meta": unique("shop", "item", "stars", condition=Q(shop=1))}, False),
        ({**BY_NUMBER, "id": models.AutoField(primary_key=True), "Meta": unique("shop", "item", "stars")}, False),
        (BY_NUMBER, False),
        ({"Meta": unique("vote_count")}, False),
        ({"stars": models.IntegerField()}, False),
        ({"stars": models.CharField(max_length=9)}, False),
        ({"shop": models.IntegerField(unique=True)}, False),
        ({"note": models.IntegerField()}, False),
        ({"note": models.IntegerField(default=7)}, True),
    ],
)
def test_totals_of_several_columns(declare, changed, good):
    totals = totals_of_votes(**changed)
    messages = declare(Vote, ["shop", "item", "stars"], totals=totals, field="vote_count")
    assert messages.keys() == (set() if good else {"E008"}), messages


def test_foreign_keys_of_totals_of_several_columns(declare):
    def totals(**options):
        with isolate_apps("tests.composite_owners"):
            return model(
                "Alerts",
                BaseCount,
                module=COMPOSITE,
                pk=models.CompositePrimaryKey("organization", "recipient"),
                organization=to(Organization, related_name="+", **{**NO_CASCADE, **options}),
                recipient=to(get_user_model(), related_name="+", **NO_CASCADE),
                unread_count=models.IntegerField(default=0),
            )

    columns = ("organization", "recipient")
    assert declare(Alert, columns, totals=totals()) == {}
    for wrong in ({"on_delete": models.CASCADE}, {"db_constraint": True}):
        assert declare(Alert, columns, totals=totals(**wrong)).keys() == {"E008"}


def test_an_owner_needs_two_columns(declare):
    for owner in ((), ("shop",), ("shop", "shop")):
        assert declare(Vote, owner, totals=VoteCount, field="vote_count").keys() == {"E010"}
    assert declare(Vote, ("shop", "nothing"), totals=VoteCount, field="vote_count").keys() == {"E006"}
    assert declare(Vote, ("shop", "item", "hidden"), totals=VoteCount, field="vote_count").keys() == {"E006"}


@pytest.mark.parametrize(("owner", "ids"), [(("user", "app_name"), set()), (("app_name", "user"), {"E017"})])
def test_counters_with_the_same_totals_agree_on_their_owners(declare, owner, ids):
    assert declare(CourseNotification, ("user", "app_name"), totals=AppCount) == {}
    counter = make_counter(
        "y",
        source="x.Y",
        owner=owner,
        condition=EVERY_ROW,
        totals="x.Z",
        field="unseen_count",
        batch_field="unseen_batch",
    )
    vars(counter).update(source=CourseNotification, totals=AppCount)
    assert found().keys() == ids


def test_each_of_several_columns_is_of_a_kind_whose_texts_are_the_same(declare):
    Row, totals = counted(shop=models.IntegerField(), day=models.DateField())
    assert declare(Row, ("shop", "day"), totals=totals, field="number").keys() == {"E012"}


@pytest.mark.django_db(transaction=True)
def test_texts_that_the_database_takes_for_the_same(declare):
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            made = "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            try:
                cursor.execute(made)
            except NotSupportedError:
                pytest.skip("A PostgreSQL that was built without ICU tells all texts apart.")
    loose = {"postgresql": "loose", "mysql": "utf8mb4_general_ci", "sqlite": "nocase"}[connection.vendor]
    for collation, ids in ((loose, {"E018"}), (EXACT, set())):
        kind = models.CharField(max_length=9, db_collation=collation)
        Row, totals = counted(user=models.IntegerField(), kind=kind)
        with connection.schema_editor() as editor:
            editor.create_model(Row)
            editor.create_model(totals)
        try:
            assert declare(Row, ("user", "kind"), totals=totals, field="number") == {}
            messages = run_checks(tags=[checks.TAG], include_deployment_checks=True, databases=["default"])
            assert {message.id.rpartition(".")[2] for message in messages} & {"E018"} == ids
        finally:
            with connection.schema_editor() as editor:
                editor.delete_model(totals)
                editor.delete_model(Row)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("DROP COLLATION loose")
