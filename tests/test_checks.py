"""Each check finds what it is about, and nothing in what is right."""

import io
import re
import uuid
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import django
import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.postgres.functions import RandomUUID, TransactionNow
from django.contrib.postgres.search import TrigramSimilarity
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection, connections, models
from django.db.models import Case, Exists, F, OuterRef, Q, Value, When
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce, ExtractYear, Length, Lower, Now, Random
from django.db.models.lookups import Exact
from django.test.utils import isolate_apps, override_settings, register_lookup
from django.utils import timezone
from django.utils.translation import gettext_lazy

import servers
from notifications_counter import checks
from notifications_counter.checks.servers import check_server
from notifications_counter.declaration import declaration
from notifications_counter.internals import METHODS, SQLUpdateCompiler
from notifications_counter.models import BaseCount, Notification, UserNotificationsCount
from tests.composite_owners.models import AppCount, CourseNotification, Vote, VoteCount
from tests.databases.test_identity import NAMES
from tests.support import make_counter
from tests.tasks.models import Issue, ProjectIssueCount, ProjectTaskCount, RecurringTask, Task, UrgentTask

REDIS = "django_redis.cache.RedisCache"
LOCMEM = "django.core.cache.backends.locmem.LocMemCache"
SECRET = "hunt3r-two"


def found(**options) -> dict[str, str]:
    """What the checks say, by id; each with a hint. With ``databases``, they ask the servers."""
    messages = run_checks(tags=[checks.TAG], **options)
    assert all(message.hint for message in messages)
    messages = [message for message in messages if "counter 'new_tickets'" not in message.msg]  # a slow one
    return {message.id.removeprefix("notifications_counter."): f"{message.msg} {message.hint}" for message in messages}


def deployed() -> dict[str, str]:
    return found(include_deployment_checks=True, databases=["default"])


# --------------------------------------------------------------------------------------------------------- settings
def entry(**entries):
    return {"NOTIFICATIONS_COUNTER": entries}


def cache(location="redis://h:6379/1", backend=REDIS, **options):
    return {"BACKEND": backend, "LOCATION": location, "OPTIONS": {"SOCKET_TIMEOUT": 1, **options}}


def caches(default, **others):
    return {"CACHES": {"default": default, **others}}


def tenants(*apps, shared=("notifications_counter",)):
    return {"TENANT_APPS": apps, "SHARED_APPS": shared}


@pytest.mark.parametrize(
    ("id", "changed", "names"),
    [
        ("E001", {"NOTIFICATIONS_COUNTER": []}, "NOTIFICATIONS_COUNTER []"),
        ("E001", entry(TOTAL_TTLS=1), "'TOTAL_TTLS' 'TOTAL_TTL'"),
        ("E001", {"NOTIFICATIONS_COUNTER_TOTAL_TTL": 5}, "NOTIFICATIONS_COUNTER_TOTAL_TTL entry"),
        ("E001", entry(TOTAL_TTL="5"), "'TOTAL_TTL' '5'"),
        ("E001", entry(MAX_TRANSACTION_AGE=0), "'MAX_TRANSACTION_AGE' 60"),
        ("E001", entry(KEY_PREFIX="{x}"), "'KEY_PREFIX' '{x}'"),
        ("E001", entry(COUNTERS=["open_tasks"]), "'COUNTERS' unread"),
        ("", entry(COUNTERS=["unread", "unseen"], CACHE_ALIAS="default"), ""),
        ("E002", caches(cache(backend=LOCMEM)), "'default' CACHES"),
        ("E002", caches(cache("127.0.0.1:6379")), "LOCATION"),
        ("E002", caches(cache(CLIENT_CLASS="django_redis.client.ShardClient")), "CLIENT_CLASS ShardClient"),
        ("", caches(cache(CLIENT_CLASS="django_redis.client.SentinelClient")), ""),
        ("E002", caches(cache(SOCKET_TIMEOUT="0.1")), "SOCKET_TIMEOUT 'default'"),
        ("E002", caches(cache(CONNECTION_POOL_KWARGS={"socket_connect_timeout": "1"})), "SOCKET_CONNECT_TIMEOUT"),
        ("E008", tenants("tests.tasks"), "TENANT_APPS"),
        ("", tenants("tests.tasks", shared=("tests.tasks", "notifications_counter")), ""),
    ],
)
def test_settings(id, changed, names):
    with override_settings(**changed):
        messages = found()
    assert messages.keys() == ({id} if id else set())
    assert all(name in messages[id] for name in names.split())


def test_the_name_of_the_setting():
    with override_settings(NOTIFICATION_COUNTER={}):
        assert found() == {}  # the other one is set
        del settings.NOTIFICATIONS_COUNTER
        assert found()["E001"].endswith("NOTIFICATION_COUNTER is unknown. Did you mean NOTIFICATIONS_COUNTER?")


def test_a_django_that_was_not_tested(monkeypatch):
    if not hasattr(SQLUpdateCompiler, "execute_returning_sql"):  # before Django 6.0
        monkeypatch.delitem(METHODS[SQLUpdateCompiler], "execute_returning_sql")
    for version, ids in (((6, 1, 9, "final", 0), set()), ((6, 2, 0, "alpha", 0), {"W008"})):
        monkeypatch.setattr(django, "VERSION", version)
        assert found().keys() == ids


@pytest.mark.parametrize("url", ["redis://:{}/x@h:6379/1", "redis://:12#{}@h:6379/1", "user:{}@h:6379"])
def test_a_location_with_a_password_is_never_shown(url):
    with override_settings(**caches(cache(url.format(SECRET)))):
        assert "Percent-encode" in found()["E002"]
        assert SECRET not in str(found())


def test_a_deployment_has_short_timeouts_in_a_cache_of_its_own():
    pool = {"CONNECTION_POOL_KWARGS": {"socket_connect_timeout": 0.1}}
    for url, options, ids in (
        ("redis://h/0", {"SOCKET_TIMEOUT": 0.1, "SOCKET_CONNECT_TIMEOUT": 2}, {"W002"}),
        ("redis://h/0?socket_timeout=0.1", pool, set()),
    ):
        of_counters = {"BACKEND": REDIS, "LOCATION": url, "OPTIONS": options}
        with override_settings(**caches({"BACKEND": LOCMEM}, counters=of_counters), **entry(CACHE_ALIAS="counters")):
            assert found(include_deployment_checks=True).keys() == ids
    assert "W003" in found(include_deployment_checks=True)  # the tests count in the default cache


# --------------------------------------------------------------------------------------------------------- databases
@pytest.mark.once
def test_transactions_of_sqlite(monkeypatch):
    for mode, ids in (("exclusive", set()), ("DEFERRED", {"W001"}), (None, {"W001"})):
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "transaction_mode", mode)
        assert found().keys() == ids


# ---------------------------------------------------------------------------------------------------------- counters
@pytest.fixture
def declare(monkeypatch):
    """A function that declares a counter, the only one, and says what the checks think of it."""
    monkeypatch.setattr(declaration, "_declarations", {})
    monkeypatch.setattr(declaration, "_by_table", None)

    def declare(source, owner="user", totals=UserNotificationsCount, field="unread_count", name="x", **others):
        declaration._declarations.pop(name, None)
        others.setdefault("condition", Q())
        counter = make_counter(name, source="x.Y", owner=owner, totals="x.Z", field=field, **others)
        vars(counter).update(source=source, totals=totals)
        return found()

    return declare


@pytest.mark.django_db
def test_migrate_passes_over_a_counter_whose_model_is_missing(declare):
    make_counter("y", source="nowhere.Row", owner="user", totals="nowhere.Total", field="count", condition=Q())
    call_command("migrate", verbosity=0, skip_checks=True)


def model(name, *bases, **body):
    return type(name, bases or (models.Model,), {"__module__": "tests.tasks.models", **body})


def to(owner, **options):
    return models.ForeignKey(owner, **{"on_delete": models.CASCADE, **options})


NO_CASCADE = {"on_delete": models.DO_NOTHING, "db_constraint": False}


def totals_with(owner=None, options=NO_CASCADE, name="Totals", **fields):
    """A totals model of users."""
    owner = models.OneToOneField(owner or get_user_model(), primary_key=True, related_name="+", **options)
    # A field belongs to one model; the parameters of a test are made once.
    fields = {name: field.clone() for name, field in fields.items()}
    return model(name, BaseCount, owner=owner, **{"unread_count": models.IntegerField(db_default=0), **fields})


@pytest.mark.usefixtures("declare")
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("source", "x.Y"),
        ("totals", "x.Y"),
        ("condition", Q(x=1)),
        ("condition", Q(done="no")),
        ("condition", Q(campaign="x")),
        ("owner", "x"),
        ("field", "x"),
        ("sum", "x"),
    ],
)
def test_names_of_what_is_not_there(name, wrong):
    names = {"source": "tasks.Task", "owner": "project", "totals": "tasks.ProjectTaskCount", "field": "open_count"}
    make_counter("x", **{"condition": Q(), **names, name: wrong})
    assert found().keys() == {"E003"}


class Hidden(models.IntegerField):
    """A column with other values in Python than in the database."""

    def from_db_value(self, value, expression, connection):
        return f"#{value}"


@isolate_apps("tests.tasks")
def test_owners_and_their_keys(declare):
    of_projects = {"totals": ProjectTaskCount, "field": "open_count"}
    for child in (UrgentTask, RecurringTask):
        assert "tasks.Task" in declare(child, "project", **of_projects)["E003"]
    assert "E003" in declare(Issue, "closed", totals=ProjectIssueCount, field="open_count")
    for columns in ((), ("shop",), ("shop", "shop")):
        assert "E003" in declare(Vote, columns, totals=VoteCount, field="vote_count")
    assert "'username'" in declare(model("Mail", user=to(get_user_model(), to_field="username")))["E003"]
    for number, (key, ids) in enumerate([(models.UUIDField, set()), (models.FloatField, {"E003"}), (Hidden, {"E003"})]):
        Owner = model(f"Owner{number}", id=key(primary_key=True))
        totals = totals_with(owner=Owner, name=f"Totals{number}")
        assert declare(model(f"Row{number}", user=to(Owner)), totals=totals).keys() == ids


@isolate_apps("tests.tasks")
def test_columns_of_a_sum(declare):
    doubled = models.GeneratedField(expression=F("size") * 2, output_field=models.IntegerField(), db_persist=True)
    columns = {"size": models.IntegerField(null=True), "doubled": doubled, "hidden": Hidden()}
    Message = model("Message", user=to(get_user_model()), **columns)
    totals = totals_with(unread_count=models.BigIntegerField(db_default=0))
    for column, ids in (("size", set()), ("doubled", set()), ("hidden", {"E003"}), ("user", {"E003"})):
        assert declare(Message, totals=totals, sum=column).keys() == ids


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({}, set()),
        ({"options": {"on_delete": models.DO_NOTHING}}, {"E004"}),
        ({"options": {"on_delete": models.CASCADE, "db_constraint": False}}, {"E004"}),
        ({"unread_count": models.IntegerField(default=0)}, {"E004"}),
        ({"unread_count": models.PositiveIntegerField(db_default=0)}, {"E004"}),
        ({"unread_count": models.IntegerField()}, {"E004"}),
        ({"unread_count": models.IntegerField(db_default=0, null=True)}, {"E004"}),
        ({"other": models.DateField(db_default=Now())}, set()),
        ({"other": models.DateField(null=True)}, set()),
        ({"other": models.DateField(auto_now_add=True)}, {"E004"}),
        ({"other": models.IntegerField()}, {"E004"}),
        ({"other": models.UUIDField(db_default=RandomUUID(), unique=True)}, {"E004"}),
    ],
)
@isolate_apps("tests.tasks")
def test_totals(declare, fields, ids):
    assert declare(Notification, totals=totals_with(**fields)).keys() == ids


@isolate_apps("tests.tasks")
def test_what_is_wrong_with_totals(declare):
    class Meta:
        constraints = [models.CheckConstraint(condition=Q(unread_count__lt=9), name="few")]

    def key():
        return models.OneToOneField(get_user_model(), primary_key=True, related_name="+", **NO_CASCADE)

    def count():
        return models.IntegerField(db_default=0)

    user = models.ForeignKey(get_user_model(), related_name="+", **NO_CASCADE)
    for totals, text in (
        (model("Limited", BaseCount, owner=key(), unread_count=count(), Meta=Meta), "a check constraint"),
        (model("Keyed", BaseCount, owner=user, unread_count=count()), "its primary key, id, is not the owner"),
        (model("Plain", owner=key(), unread_count=count()), "it is no BaseCount"),
        (totals_with(options={"on_delete": models.CASCADE}, name="Bound"), "its owner has a cascade"),
    ):
        assert text in declare(Notification, totals=totals)["E004"]


def test_totals_of_two_counters(declare):
    assert declare(Task, "project", field="unread_count").keys() == {"E004"}  # of other owners
    issues = {"source": Issue, "owner": "project", "totals": ProjectIssueCount}
    assert declare(**issues, field="open_count") == {}
    assert declare(**issues, field="urgent_count", name="y") == {}
    assert "ProjectIssueCount.open_count" in declare(**issues, field="open_count", name="y")["E004"]
    apps_of = {"source": CourseNotification, "totals": AppCount}
    assert declare(**apps_of, owner=("user", "app_name")) == {}
    assert declare(**apps_of, owner=("app_name", "user"), field="unseen_count", name="y").keys() == {"E004"}


@isolate_apps("tests.tasks")
def test_totals_of_several_columns(declare):
    def total(name, **changed):
        """A totals model like VoteCount, but for this."""
        body = {
            "pk": models.CompositePrimaryKey("shop", "item", "stars"),
            "shop": models.IntegerField(),
            "item": models.BigIntegerField(),
            "stars": models.SmallIntegerField(),
            "vote_count": models.IntegerField(db_default=0),
            **changed,
        }
        return model(name, BaseCount, **body)

    for totals, text in (
        (VoteCount, ""),
        (total("OfTwo", pk=models.CompositePrimaryKey("shop", "item")), "its key does not fit the owner"),
        (total("Larger", stars=models.IntegerField()), "its stars is not like that of composite_owners.Vote"),
        (total("Unique", shop=models.IntegerField(unique=True)), "its shop is not like that of composite_owners.Vote"),
    ):
        found = declare(Vote, ("shop", "item", "stars"), totals=totals, field="vote_count")
        assert found.keys() == ({"E004"} if text else set())
        assert text in found.get("E004", "")


# ----------------------------------------------------------------------------------------------------------- changes
class Sounds(Exact):
    """As in another package."""


def matches(*operands, **options):
    """A condition that calls a function, which may do anything."""
    return Q(Exact(models.Func(*operands, function="f", output_field=models.IntegerField(), **options), 1))


@pytest.mark.parametrize(
    ("condition", "what"),
    [
        (Q(user__is_active=True), "other rows"),
        (Q(Exists(Notification.objects.filter(user=OuterRef("user")))), "other rows"),
        (Q(pk__in=Notification.objects.values("pk")[:3]), "other rows"),
        (Q(RawSQL("read_at IS NULL", (), output_field=models.BooleanField())), "raw SQL"),
        (Q(created_at__lt=Now()), "Now"),
        (Q(created_at__range=(F("seen_at"), Now() + timedelta(1))), "Now"),
        (Q(pk__in=[1, Random()]), "Random"),
        (Q(Exact(RandomUUID(), uuid.UUID(int=1))), "RandomUUID"),
        (Q(created_at__lt=Coalesce("seen_at", TransactionNow())), "TransactionNow"),
        (Q(Exact(TrigramSimilarity("title", "x"), 1)), "TrigramSimilarity"),
        (matches("pk"), "Func"),
        (Q(Exact(Lower("title", function="f"), "x")), "Lower"),
        (Q(Sounds(F("title"), "x")), "Sounds"),
        (Q(title=Value(gettext_lazy("title"), models.CharField())), "Value"),
        (Q(data=["x", {"title": gettext_lazy("title")}]), "JSONExact"),
        (Q(created_at__year=2026), "the active time zone"),
        (Q(kind__in=["x", "y"]) | Q(data={"x": [1]}), None),
        (Q(Exact(Lower("title"), "x")), None),
        (~Q(kind="x") | Q(data__urgent=True) | Q(data__0__in=["x", None]) | Q(data__has_any_keys=["a", "b"]), None),
        (Q(created_at__gte=datetime(2026, 1, 1, tzinfo=UTC)), None),
        (Q(Exact(ExtractYear("created_at", tzinfo=UTC), 2026)), None),
        (Q(pk__in=[1, F("user_id")], title__iregex="x") | Q(title__lower__length__gt=F("pk") * 2 + 1), None),
        (Q(Exact(Case(When(read_at__lt=F("seen_at") + timedelta(1), then=Value("x")), default="title"), "x")), None),
    ],
)
def test_conditions(declare, condition, what):
    with register_lookup(models.CharField, Lower, Length):
        messages = declare(Notification, condition=condition)
    assert messages.keys() == ({"E005"} if what else {"W007"})  # none of these is fast
    assert what is None or what in messages["E005"]


def test_a_condition_with_the_time_of_the_start(declare):
    now = timezone.now().replace(microsecond=1)
    for condition in (
        Q(created_at__lt=now),
        Q(created_at__gte=now - timedelta(days=30)),
        Q(created_at__range=(now, now)),
        Q(created_at__lt=Coalesce("seen_at", Value(now))),
    ):
        assert "the time at which a process started" in declare(Notification, condition=condition)["E005"]


@isolate_apps("tests.tasks")
def test_a_value_that_is_no_choice(declare):
    choices = [("new", "New"), ("Later", [("open", "Open"), ("closed", "Closed")])]
    body = {
        "user": models.ForeignKey(get_user_model(), models.CASCADE, related_name="+"),
        "status": models.CharField(max_length=9, choices=choices),
    }
    tickets = model("Ticket", models.Model, **body)
    for condition, value in (
        (Q(status="opne"), "'opne'"),
        (~Q(status__in=["new", "opne"]), "'opne'"),
        (Q(status__in="new"), "'n', 'e', 'w'"),
        (Q(status=True), "'True'"),
    ):
        assert (
            f"names {value}, but the choices of tasks.Ticket.status are: 'new', 'open', 'closed'."
            in declare(tickets, condition=condition)["W010"]
        )
    for condition in (Q(status="open"), Q(status__in=["new", "closed"]), ~Q(status=""), Q(status=F("status"))):
        assert "W010" not in declare(tickets, condition=condition)


def test_fast_conditions(declare):
    for condition in (Q(), Q(kind="x"), Q(read_at=None, kind="x") & Q(seen_at__isnull=False), ~Q(read_at=None)):
        assert declare(Notification, condition=condition) == {}


@isolate_apps("tests.tasks")
def test_rows_that_the_database_changes(declare):
    # That of Django 6.1, or what stands in for it.
    by_database = getattr(models, "DB_CASCADE", None) or type("DatabaseOnDelete", (), {"__call__": print})()
    Thread, user = model("Thread"), get_user_model()
    Message = model("Message", user=to(user), thread=to(Thread, on_delete=by_database))
    Draft = model("Draft", user=to(user), thread=to(Thread))
    assert "tasks.Message.thread" in declare(Message)["E005"]
    assert "E005" not in declare(Draft)


# ----------------------------------------------------------------------------------------------------------- servers
@pytest.mark.django_db(transaction=True)
def test_the_servers_of_the_tests_are_good():
    of_topics = {"W006"} if connection.vendor == "mysql" else set()  # they have texts as keys
    assert deployed().keys() - {"W002"} == {"W003"} | of_topics  # the timeouts of the tests are long


@pytest.mark.django_db(transaction=True)
def test_redis_is_asked_along_with_the_database():
    url = f"redis://app:{SECRET}@127.0.0.1:{servers.free_port()}/3"
    with override_settings(CACHES={"default": cache(url)}):
        assert found() == {}
        assert deployed()["W004"] == found(databases=["default"])["W004"]
        call_command("migrate", skip_checks=False, verbosity=0, stderr=(errors := io.StringIO()))
        assert "is unavailable" in errors.getvalue()
        assert SECRET not in errors.getvalue()


@pytest.fixture
def add_alias(django_db_setup, django_db_blocker, monkeypatch):
    """A function that adds an entry to DATABASES, which is like the default one but for what is changed."""

    def add(alias, **changed):
        monkeypatch.setitem(connections.settings, alias, {**connection.settings_dict, **changed})

    with django_db_blocker.unblock():
        yield add
        connections.close_all()
    for alias in set(connections) - {"default"}:
        del connections[alias]


def test_another_alias_of_the_database(add_alias):
    """Its id tells, whatever name or address leads to it."""
    here = connection.settings_dict
    add_alias("mirror", TEST={**here["TEST"], "MIRROR": "default"})
    add_alias("nowhere", HOST=servers.HOST, PORT=servers.free_port(), NAME="/nowhere/at/all")
    add_alias("empty", ENGINE="django.db.backends.dummy")
    assert "E007" not in deployed()
    with ExitStack() as stack:
        if connection.vendor == "postgresql":
            try:
                add_alias("other", PORT=stack.enter_context(servers.pgbouncer(here["PORT"])).port)
            except servers.Missing as reason:
                pytest.skip(f"missing: {reason}")
        else:
            add_alias("other", **NAMES[connection.vendor](here["NAME"]))
        assert "'other' in DATABASES is the same database as 'default'" in deployed()["E007"]


def test_what_redis_says_of_itself():
    good = {"run_id": "a", "master_replid": "b", "maxmemory_policy": "noeviction", "maxmemory": "9"}
    evicts = {"maxmemory_policy": "allkeys-random"}
    for changed, ids in (({}, []), (evicts, ["E009"]), (evicts | {"maxmemory": "0"}, []), ({"run_id": ""}, ["W005"])):
        assert [message.id.partition(".")[2] for message in check_server(good | changed)] == ids


@pytest.mark.skipif(connection.vendor == "postgresql", reason="It tells all texts apart, unless asked not to.")
@pytest.mark.django_db(transaction=True)
def test_texts_that_the_database_takes_for_equal(declare):
    """The check names a collation that mends it."""
    found = about_owners(declare, "nocase" if connection.vendor == "sqlite" else None)["W006"]
    exact = re.search("db_collation='(.*?)'", found)[1]
    assert "W006" not in about_owners(declare, exact)


def about_owners(declare, collation):
    """What the checks say of a counter whose owners have texts of this collation as keys."""
    with isolate_apps("tests.tasks"):
        Owner = model("Owner", id=models.CharField(max_length=9, primary_key=True, db_collation=collation))
        tables = Owner, Row, Totals = Owner, model("Row", user=to(Owner)), totals_with(Owner)
    with connection.schema_editor() as editor:
        for each in tables:
            editor.create_model(each)
    try:
        assert declare(Row, totals=Totals) == {}
        return deployed()
    finally:
        with connection.schema_editor() as editor:
            for each in reversed(tables):
                editor.delete_model(each)
