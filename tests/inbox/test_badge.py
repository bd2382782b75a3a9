"""The badge of a page, and the count as JSON: what they show, to whom, and what they cost."""

import json
import re
from html import unescape

import pytest
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from django.template import engines
from django.test import RequestFactory, override_settings
from django.urls import reverse

from notifications_counter.counters import unread
from notifications_counter.exceptions import ConfigurationError
from notifications_counter.inbox.badges import badges_of
from notifications_counter.inbox.templatetags import notifications_inbox as tags
from notifications_counter.models import Notification
from tests.support import entries, notify, sent
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
@pytest.mark.once
def test_an_owner_that_is_undefined(settings, caplog, monkeypatch):
    """Django's templates make an empty text of it. None is an owner who is missing."""
    monkeypatch.setattr(tags, "logged", set())
    template = '{% badge counter="open_tasks" owner=agent %}'
    assert show(template, context={"agent": None}).strip() == ""
    assert not caplog.records
    for _ in range(2):
        assert show(template).strip() == ""
    [record] = caplog.records
    assert "The owner of the badge of 'open_tasks' in the template (without a name) is undefined" in record.getMessage()
    settings.DEBUG = True
    with pytest.raises(ConfigurationError, match="is undefined"):
        show(template)


@pytest.mark.keys
def test_a_badge_shows_the_count_to_eyes_and_ears(alice):
    notify(alice)
    assert badge(alice) == (
        '<span class="nc-badge" data-badge="unread" data-count="3" data-max="99" role="status">'
        '<span aria-hidden="true">3</span> <span class="nc-visually-hidden">3 unread notifications</span></span>\n'
    )


def test_a_count_can_be_kept_in_a_variable(alice):
    notify(alice)
    assert badge(alice, "{% unread_count as n %}{% if n > 2 %}many{% endif %}") == "many"
    for most, shown in ((2, "2+"), (3, "3")):
        assert f'<span aria-hidden="true">{shown}</span>' in badge(alice, f"{{% badge max={most} %}}")


# --------------------------------------------------------------------------------------------------------- by kind
@pytest.fixture
def kinds(with_kinds, alice, bob) -> None:
    for user, kind, number in ((alice, "sale", 3), (alice, 'a/"b"', 1), (alice, "", 2), (bob, "sale", 5)):
        Notification.objects.bulk_create(Notification(user=user, kind=kind, title="x") for _ in range(number))


@pytest.mark.usefixtures("kinds")
def test_a_badge_of_one_kind(client, alice, bob):
    page = badge(alice, "{% badge kind='sale' max=2 quiet=True %}")
    assert page == (
        '<span class="nc-badge" data-badge="unread_by_kind" data-kind="sale" data-count="3" data-max="2">'
        '<span aria-hidden="true">2+</span> <span class="nc-visually-hidden">3 unread notifications</span></span>\n'
    )
    context = {"strange": 'a/"b"', "pair": (alice, "sale"), "bob": bob}
    strange = show("{% badge kind=strange %}", request_of(alice), context)
    assert 'data-kind="a/&quot;b&quot;" data-count="1"' in strange
    assert 'data-kind="" data-count="2"' in badge(alice, "{% badge kind='' %}")
    assert 'data-kind="gone" data-count="0"' in badge(alice, "{% badge kind='gone' %}")
    assert 'data-kind="sale"' in show("{% badge counter='unread_by_kind' owner=pair %}", request_of(alice), context)
    assert badge(AnonymousUser(), "{% badge kind='sale' %}") == "\n"
    with pytest.raises(ConfigurationError, match="Remove counter='unread' or kind"):
        badge(alice, "{% badge counter='unread' kind='sale' %}")
    theirs = show("{% badge kind='sale' owner=bob %}", request_of(alice), context)
    assert 'data-count="5"' in theirs
    assert "data-kind" not in theirs
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


def test_the_badge_of_the_inbox_is_that_of_what_is_new(alice):
    notify(alice)
    assert 'data-badge="unread" data-count="3"' in badge(alice)
    with entries(COUNTERS=["unread", "unseen"]):
        Notification.objects.filter(title="0").mark_as_seen()
        page = badge(alice)
        assert 'data-badge="unseen" data-count="2"' in page
        assert ">2 new notifications<" in page
        assert badge(alice, "{% badge counter='unseen' %}") == page
        assert 'data-badge="unread" data-count="3"' in badge(alice, "{% badge counter='unread' %}")
    with pytest.raises(ConfigurationError, match="'unseen' is switched off"):
        badge(alice, "{% badge counter='unseen' %}")


@pytest.mark.parametrize("who", ["alice", "nobody", "no request"])
def test_a_badge_of_any_counter_and_owner(alice, project, who):
    request = {"alice": request_of(alice), "nobody": request_of(AnonymousUser()), "no request": None}[who]
    page = show("{% badge counter='open_tasks' owner=project max=1 %}", request, {"project": project})
    assert '<span aria-hidden="true">1+</span> <span class="nc-visually-hidden">open tasks: 2</span>' in page
    assert 'data-count="2" data-max="1" data-label="open tasks" role="status">' in page
    assert name_in(page).startswith(f"open_tasks/{project.pk}:" if who == "alice" else "")
    labelled = show("{% badge counter='open_tasks' owner=key label='Tasks' %}", request, {"key": str(project.pk)})
    assert ' data-label="Tasks" ' in labelled
    assert ">Tasks: 2<" in labelled
    assert name_in(labelled) == name_in(page)


def test_a_badge_of_nobody_is_empty_and_of_somebody_else_an_error(alice, project):
    for owner in (None, "", Project(pk=None), AnonymousUser()):
        assert show("{% badge counter='open_tasks' owner=owner %}", request_of(alice), {"owner": owner}) == "\n"
    assert show("{% badge counter='open_tasks' owner=mispelt %}", request_of(alice)) == "\n"
    with pytest.raises(ConfigurationError, match="The max of a badge must be an integer, not 'lots'."):
        badge(alice, "{% badge max='lots' %}")
    with pytest.raises(ValueError, match=r"counts for tasks\.Project, not for accounts\."):
        badge(alice, "{% badge counter='open_tasks' %}")
    with pytest.raises(ConfigurationError, match="No counter is named 'open_task'"):
        badge(alice, "{% badge counter='open_task' %}")


def test_a_script_asks_for_what_its_page_shows_and_for_nothing_else(client, alice, bob, project, monkeypatch):
    def named(user) -> str:
        return name_in(show("{% badge counter='open_tasks' owner=project %}", request_of(user), {"project": project}))

    def ask(*names: str) -> dict[str, int]:
        return client.get(reverse("notifications:counts"), {"badge": names}).json()

    notify(alice)
    mine, theirs = named(alice), named(bob)
    assert mine != theirs
    assert ask(mine) == {"unread": 3, mine: 2}
    forged = [f"open_tasks/{project.pk}", mine.replace(str(project.pk), str(Project.objects.create().pk)), mine[:-1]]
    assert ask(theirs, *forged, "", "unread", f"unread/{bob.pk}", "x" * 1000, "\0") == {"unread": 3}
    Task.objects.create(project=project)
    assert ask(mine, theirs) == {"unread": 3, mine: 3}
    monkeypatch.setattr(connection, "schema_name", "blue", raising=False)  # as a tenant library has it
    assert not badges_of(alice, [mine]).keys() & {mine}
    assert badges_of(alice, [named(alice)]).keys() >= {named(alice)}
    monkeypatch.undo()
    with override_settings(SECRET_KEY="another"):
        client.force_login(alice)
        assert ask(mine) == {"unread": 3}
        with override_settings(SECRET_KEY_FALLBACKS=[settings.SECRET_KEY, "only for tests"]):
            assert ask(mine) == {"unread": 3, mine: 3}


def test_all_badges_of_a_counter_are_one_read(client, alice, project):
    projects = [project, Project.objects.create(), Project.objects.create()]
    template = "{% for project in projects %}{% badge counter='open_tasks' owner=project %}{% endfor %}"
    page = show(template, request_of(alice), {"projects": projects})
    names = [unescape(name) for name in re.findall('data-badge="([^"]*)"', page)]
    url = reverse("notifications:counts")
    assert client.get(url, {"badge": names}).json() == {"unread": 0, **dict(zip(names, [2, 0, 0], strict=True))}
    with sent() as commands:
        client.get(url, {"badge": names})
    assert commands == ["MGET"] * 2


# ------------------------------------------------------------------------------------------------------------ cost
def test_a_badge_costs_one_round_trip_however_often_it_is_shown(alice, django_assert_num_queries):
    notify(alice)
    unread.count(alice)
    with django_assert_num_queries(0), sent() as commands:
        page = badge(alice, 2 * '{% badge %}{% badge counter="unread" %}{% unread_count %}')
    assert page.endswith("3")
    assert commands == ["MGET"]


def test_nobody_has_a_badge_a_script_a_bell_or_a_toast(django_assert_num_queries):
    tags = "{% badge %}{% badge_script %}{% notification_bell %}{% unread_toast %}{% unread_count %}"
    with django_assert_num_queries(0), sent() as commands:
        for request in (request_of(AnonymousUser()), RequestFactory().get("/"), None):
            assert show(tags, request).split() == ["0"]
    assert commands == []


# ---------------------------------------------------------------------------------------------------------- script
SCRIPT = "{% badge_script %}"


def test_the_script_knows_where_to_ask_and_what_to_say(alice, bob, django_assert_num_queries):
    with django_assert_num_queries(0), sent() as commands:
        page = badge(alice, SCRIPT)
    assert commands == []
    assert f'data-stream="{reverse("notifications:stream")}" data-poll="{reverse("notifications:counts")}"' in page
    phrases = json.loads(unescape(re.search('data-phrases="([^"]*)"', page)[1]))
    texts = ["%(n)s unread notifications", "%(n)s unread notification"]
    assert phrases == {"unread": [texts, f"01{'0' * 198}"]}
    assert page == badge(alice, SCRIPT)
    assert page != badge(bob, SCRIPT)
    assert "nonce" not in page
    assert ' nonce="abc" defer></script>' in show(SCRIPT, request_of(alice), {"csp_nonce": "abc"})
