"""What such a site can do, and what it cannot. Run by ``test_minimal_site.py``, with settings of its own."""

from importlib import import_module

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection
from django.template import Context, Template
from django.urls import reverse

from notifications_counter.counters import all_counters, unread
from notifications_counter.exceptions import ConfigurationError
from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import CounterShard, RecountRequest
from tests.support import assert_exact, rows, stored

from .counters import unseen
from .models import Notification, Reply, UnseenCount

pytestmark = pytest.mark.django_db(transaction=True)


def test_only_the_counters_are_installed() -> None:
    models = {model.__name__ for model in apps.get_app_config("notifications_counter").get_models()}
    assert models == {"CounterShard", "Dashboard", "DatabaseId", "RecountRequest"}
    assert {
        model.__name__ for model in admin.site._registry if model._meta.app_label == "notifications_counter"
    } == models - {"DatabaseId"}
    tables = {name for name in connection.introspection.table_names() if name.startswith("notifications_counter_")}
    assert tables == {f"notifications_counter_{name}" for name in ("countershard", "databaseid", "recountrequest")}
    assert all_counters() == [unseen]


def test_checks_and_migrations() -> None:
    assert run_checks() == []
    call_command("makemigrations", check=True, dry_run=True)
    # Django takes a model for which another is swapped for a setting, and would write that into the site's migrations.
    assert not hasattr(Reply._meta.get_field("notification").deconstruct()[3]["to"], "setting_name")


def test_counts(alice) -> None:
    unseen.heal()
    Notification.objects.bulk_create(Notification(user=alice) for _ in range(3))
    alice.notifications.first().delete()
    Notification.objects.filter(pk=alice.notifications.last().pk).update(seen=True)
    assert unseen.count(alice) == rows(alice, unseen) == 1
    assert unseen.flush().owners == 1
    assert stored(alice, unseen) == 1
    assert_exact(alice, counter=unseen)


def test_commands(alice, capsys) -> None:
    Notification.objects.create(user=alice)
    call_command("flush_counters")
    assert stored(alice, unseen) == 1
    UnseenCount.objects.update(unseen_count=5)
    call_command("recount_counters")
    call_command("flush_counters")
    assert stored(alice, unseen) == 1
    call_command("flush_counters", check=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("page", ["index", "countershard", "recountrequest", "dashboard"])
def test_admin(page, admin_client) -> None:
    unseen.heal()
    CounterShard.objects.get(counter="unread")
    RecountRequest.objects.create(counter="unread", owner="7")
    url = "admin:index" if page == "index" else f"admin:notifications_counter_{page}_changelist"
    assert admin_client.get(reverse(url)).status_code == 200


def test_buttons_of_the_dashboard(alice, admin_client) -> None:
    unseen.heal()
    Notification.objects.create(user=alice)
    dashboard = reverse("admin:notifications_counter_dashboard_changelist")
    page = admin_client.post(dashboard, {"counter": "unread", "flush": ""}, follow=True)
    assert "1 owner was flushed." in page.content.decode()
    assert stored(alice, unseen) == 1


def test_permissions() -> None:
    permissions = Permission.objects.filter(content_type__app_label="notifications_counter")
    assert {"flush_unread_counts", "recount_unread_counts", "view_dashboard"} <= {p.codename for p in permissions}


def test_metrics(client) -> None:
    assert (
        'notifications_counter_up{counter="unread",database="default",schema=""} 1.0'
        in client.get("/metrics/").content.decode()
    )


def render(tag: str, request) -> str:
    return Template(f"{{% load notifications_counter %}}{{% {tag} %}}").render(Context({"request": request}))


def test_a_badge(alice, rf) -> None:
    request = rf.get("/")
    request.user = alice
    Notification.objects.create(user=alice)
    assert 'data-count="1"' in render('badge counter="unread"', request)


USES = {
    "count": lambda user, request: unread.count(user),
    "counts": lambda user, request: unread.counts([]),
    "acount": lambda user, request: async_to_sync(unread.acount)(user),
    "flush": lambda user, request: unread.flush(),
    "heal": lambda user, request: unread.heal(),
    "recount": lambda user, request: unread.recount(),
    "recount-owner": lambda user, request: unread.recount([user]),
    "invalidate": lambda user, request: unread.invalidate(),
    "status": lambda user, request: unread.status(),
    "controller": lambda user, request: NotificationController(user),
    "unread count": lambda user, request: render("unread_count", request),
    "urls": lambda user, request: import_module("notifications_counter.urls"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_needs_our_notifications(use, alice, rf) -> None:
    request = rf.get("/")
    request.user = alice
    with pytest.raises(ConfigurationError, match=r"NOTIFICATIONS_COUNTER\['NOTIFICATIONS'\] is False. Set it to True"):
        use(alice, request)


def test_a_recount_of_users_is_of_our_notifications(alice) -> None:
    with pytest.raises(CommandError, match=r"NOTIFICATIONS_COUNTER\['NOTIFICATIONS'\] is False"):
        call_command("recount_counters", owner=[alice.pk])
