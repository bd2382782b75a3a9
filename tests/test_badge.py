"""The badge of a page, and the count as JSON: what they show, to whom, and what they cost."""

import re

import pytest
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.template import engines
from django.test import Client, RequestFactory, override_settings
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.functional import SimpleLazyObject

from notifications_counter.context_processors import unread as unread_processor
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import notify, sent

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

LOAD = "{% load notifications_counter %}"
WITH_PROCESSOR = [
    {
        **settings.TEMPLATES[0],
        "OPTIONS": {"context_processors": ["notifications_counter.context_processors.unread"]},
    }
]


def request_of(user):
    request = RequestFactory().get("/")
    request.user = user
    return request


def show(template: str, request=None, context=None) -> str:
    return engines["django"].from_string(LOAD + template).render(context, request)


def badge(user, template: str = "{% unread_badge %}") -> str:
    return show(template, request_of(user))


@pytest.fixture
def client(alice) -> Client:
    client = Client()
    client.force_login(alice)
    return client


# ----------------------------------------------------------------------------------------------------------- badge
@pytest.mark.keys
def test_a_badge_shows_the_count_to_eyes_and_ears(alice):
    notify(alice)
    assert badge(alice) == (
        '<span class="nc-badge" data-unread-badge data-max="99" role="status"><span aria-hidden="true">3</span> '
        '<span class="nc-visually-hidden">3 unread notifications</span></span>\n'
    )


def test_a_badge_is_hidden_at_zero(alice):
    assert '<span class="nc-badge" data-unread-badge data-max="99" role="status" hidden>' in badge(alice)
    notify(alice, 1)
    page = badge(alice)
    assert "hidden>" not in page
    assert ">1 unread notification<" in page


@pytest.mark.parametrize(("unread", "shown"), [(2, "2"), (3, "2+")])
def test_a_badge_has_a_cap(alice, unread, shown):
    notify(alice, unread)
    page = badge(alice, "{% unread_badge max=2 %}")
    assert f'data-max="2" role="status"><span aria-hidden="true">{shown}</span>' in page
    assert f">{unread} unread notifications<" in page


def test_a_cap_is_a_number_for_scripts(alice):
    with override_settings(USE_THOUSAND_SEPARATOR=True):
        assert 'data-max="1000"' in badge(alice, "{% unread_badge max=1000 %}")


def test_a_count_can_be_kept_in_a_variable(alice):
    notify(alice)
    assert badge(alice, "{% unread_count %}") == "3"
    assert badge(alice, "{% unread_count as n %}{% if n > 2 %}many{% endif %}") == "many"


def test_the_context_processor_gives_a_number(alice):
    notify(alice)
    with override_settings(TEMPLATES=WITH_PROCESSOR):
        text = "{{ unread_count }} {{ unread_count|add:1 }} {% if unread_count > 2 %}many{% endif %}"
        assert badge(alice, text) == "3 4 many"


def test_each_user_has_a_count_of_their_own(alice, bob):
    notify(alice)
    request = request_of(alice)
    assert show("{% unread_count %}", request) == "3"
    request.user = bob  # as by a login in the middle of a request
    assert show("{% unread_count %}", request) == "0"


def test_a_request_in_the_context_does_as_well(alice):
    notify(alice)
    assert show("{% unread_count %}", context={"request": request_of(alice)}) == "3"


# ------------------------------------------------------------------------------------------------------------ cost
def test_a_badge_costs_one_round_trip_however_often_it_is_shown(alice, django_assert_num_queries):
    notify(alice)
    unread.count(alice)
    with override_settings(TEMPLATES=WITH_PROCESSOR), django_assert_num_queries(0), sent() as commands:
        page = badge(alice, "{% unread_badge %}{% unread_badge %}{% unread_count %}{{ unread_count }}")
    assert page.endswith("33")
    assert commands == ["MGET"]


def test_a_page_without_a_badge_costs_nothing(django_assert_num_queries):
    def user():
        raise AssertionError("nobody asked who it is")

    with override_settings(TEMPLATES=WITH_PROCESSOR), django_assert_num_queries(0), sent() as commands:
        assert badge(SimpleLazyObject(user), "hello") == "hello"
    assert commands == []


@pytest.mark.parametrize("who", ["nobody", "no middleware", "no request"])
def test_nobody_has_no_badge(who, django_assert_num_queries):
    request = {
        "nobody": lambda: request_of(AnonymousUser()),
        "no middleware": lambda: RequestFactory().get("/"),
        "no request": lambda: None,
    }[who]()
    with override_settings(TEMPLATES=WITH_PROCESSOR), django_assert_num_queries(0), sent() as commands:
        assert show("{% unread_badge %}", request) == "\n"
        assert show("{% unread_count %}", request) == "0"
        assert show("{{ unread_count }}", request) == ("" if request is None else "0")
    assert commands == []
    if request is not None:
        assert unread_processor(request)["unread_count"]() == 0


# ------------------------------------------------------------------------------------------------------------ JSON
@pytest.mark.keys
def test_json(client, alice):
    notify(alice)
    response = client.get(reverse("notifications:unread"))
    assert response.json() == {"unread": 3}
    assert set(response["Cache-Control"].split(", ")) == {"private", "no-cache"}
    assert "Cookie" in response["Vary"]


def test_json_that_is_known(client, alice):
    notify(alice)
    url = reverse("notifications:unread")
    etag = client.get(url)["ETag"]
    known = {"If-None-Match": etag}
    response = client.get(url, headers=known)
    assert (response.status_code, response.content, response["ETag"]) == (304, b"", etag)
    assert "private" in response["Cache-Control"]
    Notification.objects.create(user=alice, title="x")
    assert client.get(url, headers=known).json() == {"unread": 4}


def test_json_costs_one_round_trip(client, alice, django_assert_num_queries):
    notify(alice)
    unread.count(alice)
    with django_assert_num_queries(2) as queries, sent() as commands:
        assert client.get(reverse("notifications:unread")).status_code == 200
    assert commands == ["MGET"]
    assert not any("notifications_counter" in query["sql"] for query in queries)  # the session and the user


@pytest.mark.parametrize("login_everywhere", [False, True])
def test_json_for_nobody(login_everywhere, django_assert_num_queries):
    middleware = [*settings.MIDDLEWARE, *["django.contrib.auth.middleware.LoginRequiredMiddleware"][:login_everywhere]]
    with override_settings(MIDDLEWARE=middleware), django_assert_num_queries(0), sent() as commands:
        response = Client().get(reverse("notifications:unread"))
    assert (response.status_code, response.json()) == (401, {"detail": "Authentication required."})
    assert "private" in response["Cache-Control"]
    assert commands == []


def test_json_is_only_looked_at(client):
    assert client.post(reverse("notifications:unread")).status_code == 405
    assert client.head(reverse("notifications:unread")).status_code == 200


# ---------------------------------------------------------------------------------------------------------- script
SCRIPT = "{% unread_badge_script %}"


def test_the_script_knows_where_to_ask_and_what_to_say(alice, bob, django_assert_num_queries):
    with django_assert_num_queries(0), sent() as commands:
        page = badge(alice, SCRIPT)
    assert commands == []
    assert f'data-stream="{reverse("notifications:stream")}" data-poll="{reverse("notifications:unread")}"' in page
    assert "[&quot;%(n)s unread notifications&quot;, &quot;%(n)s unread notification&quot;]" in page
    assert f'data-forms="01{"0" * 198}"' in page
    assert page == badge(alice, SCRIPT)
    assert page != badge(bob, SCRIPT)
    assert "nonce" not in page


def test_the_script_takes_a_nonce(alice):
    request = request_of(alice)
    assert ' nonce="abc" defer></script>' in show(SCRIPT, request, {"csp_nonce": "abc"})


def test_nobody_has_no_script():
    assert show(SCRIPT, request_of(AnonymousUser())) == show(SCRIPT) == "\n"


# ----------------------------------------------------------------------------------------------------------- toast
TOAST = "{% unread_toast %}"


def test_a_toast_knows_since_when_to_ask(alice, django_assert_num_queries):
    start = timezone.now()
    with django_assert_num_queries(0), sent() as commands:
        page = badge(alice, TOAST)
    assert commands == []
    assert f'data-api="{reverse("notifications:api-inbox")}" data-inbox="{reverse("notifications:inbox")}"' in page
    since = parse_datetime(re.search('data-since="([^"]*)"', page)[1])
    assert start <= since <= timezone.now()
    assert show(TOAST, request_of(AnonymousUser())) == show(TOAST) == "\n"
