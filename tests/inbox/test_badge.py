"""The badge of a page, and the count as JSON: what they show, and to whom."""

import re
from html import unescape

import pytest
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.template import engines
from django.test import RequestFactory, override_settings
from django.urls import reverse

from notifications_counter.exceptions import ConfigurationError
from notifications_counter.inbox.badges import badges_of
from notifications_counter.models import Notification
from tests.support import in_use, notify, sent
from tests.tasks.counters import open_tasks
from tests.tasks.models import Project, Task

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

LOAD = "{% load notifications_inbox %}"


def request_of(user):
    request = RequestFactory().get("/")
    request.user = user
    return request


def show(template: str, request=None, context=None) -> str:
    return engines["django"].from_string(LOAD + template).render(context, request)


def badge(user, template: str = "{% badge %}") -> str:
    return show(template, request_of(user))


# ----------------------------------------------------------------------------------------------------------- badge
@pytest.mark.keys
def test_a_badge_shows_the_count_to_eyes_and_ears(alice):
    notify(alice)
    assert badge(alice) == (
        '<span role="status"><span class="nc-badge" data-badge="unread" data-count="3" data-max="99" '
        'data-label="Unread notifications">'
        '<span aria-hidden="true">3</span> <span class="nc-visually-hidden">Unread notifications: 3</span>'
        "</span></span>\n"
    )
    for most, shown in ((2, "2+"), (3, "3")):
        assert f'<span aria-hidden="true">{shown}</span>' in badge(alice, f"{{% badge max={most} %}}")
    assert badge(alice, "{% unread_count as n %}{% if n > 2 %}many{% endif %}") == "many"


def test_the_badge_of_the_inbox_is_that_of_what_is_new(alice):
    notify(alice)
    assert 'data-badge="unread" data-count="3"' in badge(alice)
    with in_use("unseen"):
        Notification.objects.filter(title="0").mark_as_seen()
        page = badge(alice)
        assert 'data-badge="unseen" data-count="2"' in page
        assert ">New notifications: 2<" in page
        assert badge(alice, "{% badge counter='unseen' %}") == page
        assert 'data-badge="unread" data-count="3"' in badge(alice, "{% badge counter='unread' %}")
    with pytest.raises(ConfigurationError, match="'unseen' is not in use. Add its name to .*'COUNTERS'"):
        badge(alice, "{% badge counter='unseen' %}")


def test_nobody_has_a_badge_a_bell_or_a_toast(django_assert_num_queries):
    tags = "{% badge %}{% unread_toast %}{% unread_count %}{% notification_bell %}"
    with django_assert_num_queries(0), sent() as commands:
        for request in (request_of(AnonymousUser()), RequestFactory().get("/"), None):
            shown, style_sheet = show(tags, request).split("<link")
            assert shown.split() == ["0"]
            assert style_sheet.count("<") == 0  # for badges of others
    assert commands == []


# --------------------------------------------------------------------------------------------------------- by kind
def test_a_badge_of_one_kind(with_kinds, client, alice, bob):
    for user, kind, number in ((alice, "sale", 3), (alice, 'a/"b"', 1), (alice, "", 2), (bob, "sale", 5)):
        Notification.objects.bulk_create(Notification(user=user, kind=kind, title="x") for _ in range(number))
    assert badge(alice, "{% badge kind='sale' max=2 quiet=True %}") == (
        '<span class="nc-badge" data-badge="unread_by_kind" data-kind="sale" data-count="3" data-max="2" '
        'data-label="Unread notifications">'
        '<span aria-hidden="true">2+</span> <span class="nc-visually-hidden">Unread notifications: 3</span></span>\n'
    )
    context = {"strange": 'a/"b"', "bob": bob}
    assert 'data-kind="a/&quot;b&quot;" data-count="1"' in show("{% badge kind=strange %}", request_of(alice), context)
    assert badge(alice, "{% badge kind=mispelt %}") == "\n"
    assert 'data-kind="gone" data-count="0"' in badge(alice, "{% badge kind='gone' %}")
    with pytest.raises(ConfigurationError, match="Remove counter='unread' or kind"):
        badge(alice, "{% badge counter='unread' kind='sale' %}")
    theirs = show("{% badge kind='sale' owner=bob %}", request_of(alice), context)
    assert 'data-count="5"' in theirs
    name = name_in(theirs)
    assert client.get(reverse("notifications:counts"), {"badge": name}).json() == {
        "unread": 6, "unseen": 6, "unread_by_kind": {"": 2, 'a/"b"': 1, "sale": 3}, name: 5
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------- other counters
@pytest.fixture
def project(few_healed) -> Project:
    """It has two open tasks."""
    project = Project.objects.create()
    for done in (False, False, True):
        Task.objects.create(project=project, done=done)
    return project


def name_in(page: str) -> str:
    return unescape(re.search('data-badge="([^"]*)"', page)[1])


@pytest.mark.parametrize("is_somebody", [True, False])
def test_a_badge_of_any_counter_and_owner(alice, project, is_somebody):
    request = request_of(alice) if is_somebody else None
    page = show("{% badge counter='open_tasks' owner=project max=1 %}", request, {"project": project})
    assert '<span aria-hidden="true">1+</span> <span class="nc-visually-hidden">open tasks: 2</span>' in page
    assert 'data-count="2" data-max="1" data-label="open tasks">' in page
    assert name_in(page).startswith(f"open_tasks/{project.pk}:" if is_somebody else "")
    labelled = show("{% badge counter='open_tasks' owner=key label='Tasks' %}", request, {"key": str(project.pk)})
    assert ">Tasks: 2<" in labelled
    assert name_in(labelled) == name_in(page)


def test_a_badge_whose_count_is_known_asks_nobody(alice, project):
    open_tasks.attach(projects := [project], "open")
    with sent() as commands:
        page = show("{% badge counter='open_tasks' owner=p count=p.open %}", request_of(alice), {"p": projects[0]})
    assert 'data-count="2"' in page
    assert commands == []


def test_a_badge_of_nobody_is_empty_and_of_somebody_else_an_error(alice, project, settings):
    for owner in (None, Project(pk=None), AnonymousUser()):
        assert show("{% badge counter='open_tasks' owner=owner %}", request_of(alice), {"owner": owner}) == "\n"
    mispelt = "{% badge counter='open_tasks' owner=mispelt %}"  # Django's templates make an empty text of it
    unquoted = "{% badge counter=open_tasks owner=1 %}"  # … and of this
    unattached = "{% badge owner=user count=user.unattached %}"
    assert badge(alice, mispelt) == badge(alice, unquoted) == badge(alice, unattached) == "\n"
    settings.DEBUG = True
    for template, error, text in (
        (mispelt, ConfigurationError, "is undefined"),
        (unquoted, ConfigurationError, "in quotes"),
        (unattached, ConfigurationError, r"Call attach\(\)"),
        ("{% badge kind=comment %}", ConfigurationError, "The kind of a badge is undefined.*in quotes"),
        ("{% badge max=most %}", ConfigurationError, "The max of a badge is undefined"),
        ("{% badge count='many' %}", ConfigurationError, "must be an integer, not 'many'"),
        ("{% badge max='lots' %}", ConfigurationError, "must be an integer, not 'lots'"),
        ("{% badge counter='open_tasks' %}", ValueError, r"counts for tasks\.Project, not for accounts\."),
        ("{% badge counter='open_task' %}", ConfigurationError, "No counter is named 'open_task'"),
    ):
        with pytest.raises(error, match=text):
            badge(alice, template)


@pytest.mark.parametrize(
    "template",
    ["{% unread_count %}", "{% unread_by_kind %}", "{% badge %}", "{% notification_bell %}", "{% unread_toast %}"],
)
def test_a_template_without_a_request_shows_nobodys_count_and_says_so_in_development(template, settings):
    assert "data-count" not in show(template)
    settings.DEBUG = True
    with pytest.raises(ConfigurationError, match="has no request"):
        show(template)
    assert "data-count" in show("{% badge owner=1 %}")


def test_a_script_asks_for_what_its_page_shows_and_for_nothing_else(client, alice, bob, project, monkeypatch):
    def named(user, project=project) -> str:
        return name_in(show("{% badge counter='open_tasks' owner=project %}", request_of(user), {"project": project}))

    def ask(*names: str) -> dict[str, int]:
        return client.get(reverse("notifications:counts"), {"badge": names}).json()

    notify(alice)
    other = Project.objects.create()
    mine, theirs = named(alice), named(bob)
    assert mine != theirs
    forged = [f"open_tasks/{project.pk}", mine.replace(str(project.pk), str(other.pk)), mine[:-1]]
    assert ask(mine, theirs, *forged, "", "unread", f"unread/{bob.pk}", "x" * 1000, "\0") == {"unread": 3, mine: 2}
    empty = named(alice, other)
    ask(empty)
    with sent() as commands:
        assert ask(mine, empty) == {"unread": 3, mine: 2, empty: 0}
    assert commands == ["MGET"] * 2  # all badges of a counter are one read
    monkeypatch.setattr(connection, "schema_name", "blue", raising=False)  # as a tenant library has it
    assert not badges_of(alice, [mine]).keys() & {mine}
    assert badges_of(alice, [named(alice)]).keys() >= {named(alice)}
    monkeypatch.undo()
    with override_settings(SECRET_KEY="another"):
        client.force_login(alice)
        assert ask(mine) == {"unread": 3}
        with override_settings(SECRET_KEY_FALLBACKS=[settings.SECRET_KEY, "only for tests"]):
            assert ask(mine) == {"unread": 3, mine: 2}


# ---------------------------------------------------------------------------------------------------------- script
def test_the_script_knows_where_to_ask(alice, bob):
    script = "{% badge_script %}"
    page = badge(alice, script)
    assert f'data-stream="{reverse("notifications:stream")}" data-poll="{reverse("notifications:counts")}"' in page
    assert page == badge(alice, script)
    assert page != badge(bob, script)
    assert "nonce" not in page
    for request in (request_of(AnonymousUser()), None):  # who may see the badges of others
        assert "inbox.css" in (alone := show(script, request))
        assert "<script" not in alone
    assert ' nonce="abc" defer></script>' in show(script, request_of(alice), {"csp_nonce": "abc"})


def test_a_script_without_urls(alice):
    with override_settings(ROOT_URLCONF=()), pytest.raises(ImproperlyConfigured, match=r"Add path\('notifications/'"):
        badge(alice, "{% notification_bell %}")
