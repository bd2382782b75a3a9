"""The pages of the inbox: what they show and change, and for whom."""

import re
from datetime import datetime, timedelta
from html import unescape
from importlib import reload
from unittest.mock import Mock

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, modify_settings, override_settings
from django.urls import include, path, reverse
from django.utils import timezone
from django.utils.formats import date_format

from notifications_counter import models
from notifications_counter.counters import unread, unseen
from notifications_counter.inbox import urls, views
from notifications_counter.inbox.paging import page_of
from notifications_counter.inbox.templatetags import notifications_inbox
from notifications_counter.models import Notification
from tests.support import assert_exact, messages, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

CHANGES = ["mark-as-read", "mark-as-unread", "delete"]

KINDS = [("sale", "Sales")]
HOSTS = {"shop.example"}

# What comes first is found first; the names of the views lead here all the same.
urlpatterns = [
    path("inbox/", views.InboxView.as_view(page_size=2, kinds=KINDS)),
    path("inbox/<int:pk>/", views.NotificationView.as_view(kinds=KINDS, mark_on_get=True, allowed_hosts=HOSTS)),
    path("inbox/", include("notifications_counter.inbox.urls")),
]
own_urls = override_settings(ROOT_URLCONF=__name__)


def url(name: str = "inbox", *args) -> str:
    return reverse(f"notifications:{name}", args=args)


def titles(response) -> list[str]:
    return [row.title for row in response.context["page"].rows]


def links(response) -> dict[str, str]:
    """Where the links of a page lead to, by their text."""
    found = re.findall(r'<a [^>]*?href="([^"]*)"[^>]*>(?:<bdi[^>]*>)?([^<]*)</', response.content.decode())
    return {text: unescape(link) for link, text in found}


# ------------------------------------------------------------------------------------------------------------ seen
@pytest.mark.usefixtures("with_unseen")
def test_opening_the_inbox_is_seeing_all(client, alice, bob):
    notify(alice, 25)
    notify(bob)
    client.head(url())
    client.get(url(), headers={"Sec-Purpose": "prefetch;prerender"})
    for elsewhere in ("cross-site", "same-site"):
        client.get(url(), headers={"Sec-Fetch-Site": elsewhere, "Sec-Fetch-Dest": "image"})
    client.get(url("api-inbox"))
    assert unseen.count(alice) == 25  # nobody has looked
    page = client.get(url())
    assert (unread.count(alice), unseen.count(alice), unseen.count(bob)) == (25, 0, 3)
    assert page.content.count(b"nc-row nc-unread") == 20
    assert b'data-count="0" data-max="99" data-label="New notifications" hidden>' in page.content
    for counter in (unread, unseen):
        assert_exact(alice, bob, counter=counter)


# ------------------------------------------------------------------------------------------------------------ list
@pytest.mark.keys
def test_the_list_is_the_users_own_newest_first(client, alice, bob):
    notify(bob)
    notify(alice, 3, read=1)
    page = client.get(url())
    assert titles(page) == ["2", "1", "0"]
    text = page.content.decode()
    assert re.findall(r'<li class="nc-row nc-(\w+)"', text) == ["unread", "unread", "read"]
    assert "Unread notifications: 2" in text
    assert "no-store" in page["Cache-Control"]
    assert Notification.objects.for_user(alice).unseen().count() == 2  # that counter is switched off


@own_urls
def test_filters_and_pages_go_together(client, alice):
    for title in "abcde":
        Notification.objects.create(user=alice, title=title, kind="sale")
    Notification.objects.create(user=alice, title="x")
    page = client.get(url())
    chip = b'<span class="nc-kind"'
    assert chip in page.content
    for name, shown, title in (
        ("Unread", ["x", "e"], "Unread – "),
        ("Sales", ["e", "d"], "Unread – Sales – "),
        ("Older", ["c", "b"], "Unread – Sales – Older – "),
        ("Older", ["a"], "Unread – Sales – Older – "),
        ("Newer", ["c", "b"], "Unread – Sales – Older – "),
        ("Newer", ["e", "d"], "Unread – Sales – "),
        ("All", ["e", "d"], "Sales – "),
    ):
        page = client.get(url() + links(page)[name])
        assert titles(page) == shown
        assert f"<title>{title}Notifications</title>" in page.content.decode()
    assert chip not in page.content
    assert "Newer" not in links(page)
    assert titles(client.get(url() + links(page)["Any kind"])) == ["x", "e"]


@own_urls
def test_the_head_leads_to_the_newest_and_says_what_is_marked(client, alice):
    def head(response) -> str:
        return response.content.decode().split('<div class="nc-head">')[-1].partition('<div class="nc-menu"')[0]

    Notification.objects.bulk_create(Notification(user=alice, kind="sale", title="x") for _ in range(3))
    page = client.get(url())
    assert "Newest" not in head(page)
    assert "in “" not in head(page)
    page = client.get(url() + links(page)["Sales"])
    assert "Newest" not in head(page)
    page = client.get(url() + links(page)["Older"])
    assert '?show=all&amp;kind=sale">Newest</a>' in head(page)
    assert re.search('aria-label="Mark all as read in “Sales”".*<span>Mark all as read</span></button>', head(page))


@pytest.mark.parametrize(
    ("days", "heading", "below"),
    [
        (-1, "Today", "TIME_FORMAT"),
        (0, "Today", "TIME_FORMAT"),
        (1, "Yesterday", "TIME_FORMAT"),
        (6, "{0:%A}", "TIME_FORMAT"),
        (7, "{0:%B}", "MONTH_DAY_FORMAT"),
        (400, "{0:%B} {0.year}", "DATE_FORMAT"),
    ],
)
def test_a_day_has_times_and_a_month_has_days(client, alice, monkeypatch, days, heading, below):
    now = timezone.make_aware(datetime(2026, 11, 22, 12))
    at = now - timedelta(days=days)
    monkeypatch.setattr(notifications_inbox, "datetime", Mock(now=lambda zone: now.astimezone(zone)))
    Notification.objects.create(user=alice, title="x", created_at=at)
    for part in ("list", "bell"):
        text = client.get(url(), headers={"X-Part": part}).content.decode()
        assert re.findall(r"<time [^>]*>([^<]*)</time>", text) == [date_format(at, below)]
        assert re.findall('<li class="nc-day(| nc-today)" .*<h2[^>]*>(.*)</h2>', text) == (
            [(" nc-today" if heading == "Today" else "", heading.format(at))] if part == "list" else []
        )
        times = re.findall('aria-describedby="([^"]*-when-.*?)"', text)
        assert {"nc-day-" in ids for ids in times} == {part == "list" and days in (1, 6)}


@pytest.mark.parametrize("part", ["", "bell"])
def test_buttons_have_names_beside_their_tooltips(client, alice, part):
    notify(alice, 2, read=1)
    text = client.get(url(), headers={"X-Part": part}).content.decode()
    buttons = re.findall('<button [^>]*title="([^"]*)"[^>]*>(.*?)</button>', text)
    assert {"Mark as read", "Mark as unread", "More", "Close"} <= {title for title, _ in buttons}
    assert all(f">{title}</span>" in inside for title, inside in buttons)


@pytest.mark.parametrize("part", ["list", "bell"])
def test_nothing_unread_is_nothing_to_mark(with_kinds, client, alice, part):
    def can_mark(**asked) -> bool:
        text = client.get(url(), asked, headers={"X-Part": part}).content.decode()
        return "disabled" not in re.search('<button [^>]*-read-all"[^>]*>', text)[0]

    old = notify(alice, 1)[0]
    notify(alice, 25, read=25)
    assert can_mark()
    assert not can_mark(kind="sale")
    Notification.objects.filter(pk=old.pk).mark_as_read()
    assert not can_mark()


# ------------------------------------------------------------------------------------------------------------ tabs
def tabs(response) -> dict[str, str]:
    """What the tabs show: the number beside each name."""
    part = response.content.decode().partition('<div class="nc-filters nc-kinds"')[2].partition("</ul>")[0]
    tab = r"<a [^>]*><bdi[^>]*>([^<]*)</bdi>(?: <span [^>]*><span [^>]*>(\d+)</span>[^\n]*\n)?</a>"
    return dict(re.findall(tab, part))


def test_a_tab_for_each_kind_with_its_number(with_kinds, client, alice, bob):
    for user, kind, number in ((alice, "sale", 3), (alice, "<b>", 1), (alice, "", 2), (bob, "other", 1)):
        Notification.objects.bulk_create(Notification(user=user, kind=kind, title="x") for _ in range(number))
    page = client.get(url())
    assert tabs(page) == {"Any kind": "6", "&lt;b&gt;": "1", "sale": "3"}
    assert 'href="?show=all&amp;kind=sale"><bdi>sale<' in page.content.decode()
    assert len(titles(client.get(url(), {"kind": "sale"}))) == 3
    Notification.objects.filter(kind="sale").mark_as_read()
    assert tabs(client.get(url())) == {"Any kind": "3", "&lt;b&gt;": "1"}
    page = client.get(url(), {"kind": "sale", "show": "unread"})
    assert tabs(page) == {"Any kind": "3", "&lt;b&gt;": "1", "sale": "0"}
    assert "Nothing unread in “sale”." in page.content.decode()


# ----------------------------------------------------------------------------------------------------------- pages
@pytest.mark.parametrize("seconds", [[1, 1, 1, 1, 1, 1], [3, 3, 2, 2, 2, 1], [0, 1, 2, 3, 4, 5]])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_pages_have_every_row_once_both_ways(alice, bob, seconds, size):
    now, mine = timezone.now(), Notification.objects.for_user(alice)
    for age in seconds:
        Notification.objects.bulk_create([Notification(user=alice, title="x", created_at=now - timedelta(seconds=age))])
    notify(bob)
    every = list(mine.order_by("-created_at", "-pk"))
    pages = [page_of(mine, size)]
    while pages[-1].older:
        pages.append(page_of(mine, size, before=pages[-1].older))
    assert [row for page in pages for row in page.rows] == every
    assert pages[0].newer == ""
    for newer, page in zip(pages[:-1][::-1], pages[1:][::-1], strict=True):
        assert page_of(mine, size, after=page.newer).rows == newer.rows
    if len(pages) > 1:  # what comes and goes moves no page
        pages[0].rows[-1].delete()
        notify(alice, 1)
        assert page_of(mine, size, before=pages[0].older).rows == pages[1].rows


def test_invalid_cursors_are_not_found(client):
    for cursor in ("x", "_", "1", "1_", "_1", "1_x", f"{10**30}_1", "9" * 5000 + "_1", f"1_{10**30}"):
        for way in ("before", "after"):
            assert client.get(url(), {way: cursor}).status_code == 404


# ------------------------------------------------------------------------------------------------------------ open
@own_urls
def test_looking_opens_where_the_site_wants_that(client, alice):
    row, other = notify(alice, 2)
    assert client.head(url("open", row.pk)).status_code == 200
    assert client.get(url("open", row.pk), headers={"Sec-Purpose": "prefetch"}).status_code == 200
    assert unread.count(alice) == 2
    assert client.get(url("open", row.pk)).context["notification"].is_read
    Notification.objects.filter(pk=other.pk).update(url="/x/")
    assert client.get(url("open", other.pk))["Location"] == "/x/"
    assert_exact(alice)


@own_urls
def test_a_notification_leads_back_to_the_list_it_was_in(client, alice):
    Notification.objects.create(user=alice, title="x", kind="sale")
    back = f"{url()}?show=unread&kind=sale"
    page = client.get(links(client.get(back))["Details"])
    assert links(page)["Notifications"].split("#")[0] == back
    forms = re.findall(r'name="next" value="([^"]*)"', page.content.decode())
    assert [unescape(form) for form in forms] == [back, back]
    assert '<span class="nc-kind">Sales</span>' in page.content.decode()


@own_urls
def test_a_notification_leads_to_the_ones_beside_it(client, alice, bob):
    """Of the list it was in, also if it is no longer in it, as after it was read."""
    at = timezone.now()
    for title, user, kind in (
        ("0", alice, "sale"),
        ("1", alice, ""),
        ("2", alice, "sale"),
        ("", bob, "sale"),
        ("3", alice, "sale"),
    ):
        Notification.objects.create(user=user, title=title, kind=kind, created_at=at)
    Notification.objects.filter(title="2").mark_as_read()
    row = Notification.objects.get(title="2")
    for query, newer, older in (("", "3", "1"), ("?kind=sale", "3", "0"), ("?show=unread&kind=sale", "3", "0")):
        page = client.get(f"{url()}{row.pk}/{query}")
        for name, title in (("Newer", newer), ("Older", older)):
            pk = Notification.objects.get(title=title).pk
            assert links(page)[name] == f"{url()}{pk}/{query}#nc-{name.lower()}"
    page = client.get(links(page)["Newer"])
    assert re.search('<a [^>]*id="nc-newer"[^>]*aria-disabled="true"', page.content.decode())
    assert page.context["notification"].title == "3"


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("/a/?b=c#d", "/a/?b=c#d"),
        ("a/b/", "/a/b/"),
        ("http://testserver/a/", "http://testserver/a/"),
        ("http://testserver.example/", None),
        ("../http:/shop.example/", "/http:/shop.example/"),  # from https, http:/shop.example/ would be another host
        ("../javascript:alert(1)", "/javascript:alert(1)"),
        ("../\\shop.example/", "/shop.example/"),
        ("javascript:alert(1)", None),
        ("\\\\shop.example/", None),
        ("/.//shop.example/", None),  # with dots resolved, it would be another host
    ],
)
def test_opening_leads_only_to_this_site(client, alice, address, target):
    row = notify(alice, 1)[0]
    Notification.objects.filter(pk=row.pk).update(url=address)
    response = client.post(url("open", row.pk))
    assert response["Location"] == (target or url("open", row.pk))
    assert unread.count(alice) == 0
    page = client.get(url("open", row.pk)).content.decode()
    assert ('rel="noopener noreferrer"' in page) == (address == "http://testserver.example/")
    assert "javascript" not in page


# --------------------------------------------------------------------------------------------------------- changes
@pytest.mark.keys
def test_one_selected_and_all(client, alice, bob):
    def change(name, **data) -> str:
        return messages(client.post(url(name), data, follow=True))[-1]

    notify(bob)
    rows = [row.pk for row in notify(alice, 5)]
    assert change("mark-as-read", pk=rows[0]) == "1 notification marked as read."
    assert change("mark-as-read", selected=rows[:3]) == "2 notifications marked as read."
    assert change("mark-as-unread", selected=rows[:2]) == "2 notifications marked as unread."
    assert change("mark-as-read", which="all") == "4 notifications marked as read."
    change("mark-as-unread", pk=rows[4])
    assert change("delete", which="read") == "4 notifications deleted."
    assert unread.counts([alice, bob]) == {alice.pk: 1, bob.pk: 3}
    assert change("delete", pk=rows[4]) == "1 notification deleted."
    assert_exact(alice, bob, in_doubt=None)


def test_undo_of_mark_all_changes_nothing_else(client, alice):
    """Not what was read elsewhere in between, even if it was marked as unread and read again."""
    before, first, second, again = notify(alice, 4)
    before.mark_as_read()
    response = client.post(url("mark-as-read"), {"which": "all"}, headers={"X-Part": "list"})
    assert response.content.decode() == "3 notifications marked as read."
    again.mark_as_unread()
    [*_, elsewhere] = notify(alice, 1)
    for row in (again, elsewhere):
        row.mark_as_read()
    undo = {"which": "read", "at": response["X-Changed-At"]}
    response = client.post(url("mark-as-unread"), undo, headers={"X-Part": "list"})
    assert response.content.decode() == "2 notifications marked as unread."
    assert {*Notification.objects.unread()} == {first, second}
    assert client.post(url("mark-as-unread"), {**undo, "at": "tea time"}).status_code == 404
    assert_exact(alice)


def test_changes_go_back_where_they_came_from(client, alice):
    place = url() + "?show=unread&before=1_1"
    for change in CHANGES:
        assert client.post(url(change), {"which": "all", "next": place})["Location"] == place
        for foreign in ("", "https://shop.example/", "//shop.example/", "javascript:alert(1)"):
            assert client.post(url(change), {"which": "all", "next": foreign})["Location"] == url()


@pytest.mark.keys
def test_what_others_have_is_missing(client, alice, bob):
    for row in notify(bob, 2, read=1):
        for change in CHANGES:
            assert client.post(url(change), {"pk": row.pk}).status_code == 404
            client.post(url(change), {"selected": [row.pk]})
            client.post(url(change), {"which": "all"})
            client.post(url(change), {"which": "read"})
        assert client.get(url("open", row.pk)).status_code == 404
        assert client.post(url("open", row.pk)).status_code == 404
    assert Notification.objects.for_user(bob).count() == 2
    assert unread.count(bob) == 1
    assert_exact(bob)


# ---------------------------------------------------------------------------------------------------------- access
@pytest.mark.parametrize("middleware", [settings.MIDDLEWARE, [m for m in settings.MIDDLEWARE if "Csrf" not in m]])
def test_changes_are_posted_with_a_token(client, alice, middleware):
    row = notify(alice, 1)[0]
    client.handler.enforce_csrf_checks = True
    with override_settings(MIDDLEWARE=middleware):
        for change in CHANGES:
            assert client.post(url(change), {"pk": row.pk}).status_code == 403
        assert client.post(url("open", row.pk)).status_code == 403
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', client.get(url()).content.decode())[1]
        form = {"pk": row.pk, "csrfmiddlewaretoken": token}
        assert client.post(url("mark-as-read"), form).status_code == 302
    assert unread.count(alice) == 0


@pytest.mark.parametrize("name", ["inbox", "open", *CHANGES])
def test_pages_ask_for_a_login(name, alice):
    path = url(name, *([notify(alice, 1)[0].pk] if name == "open" else []))
    for response in (Client().get(path), Client().post(path)):
        assert response.status_code == 302
        assert response["Location"].startswith(settings.LOGIN_URL)
    assert unread.count(alice) == (1 if name == "open" else 0)


# ------------------------------------------------------------------------------------------------------- templates
def test_texts_are_escaped(client, alice):
    evil = "<script>alert(1)</script>\"'"
    row = Notification.objects.create(user=alice, title=evil, body=evil, kind=evil, url="javascript:alert(1)")
    for page in (client.get(url(), {"kind": evil}), client.get(url("open", row.pk))):
        text = page.content.decode()
        assert "alert(1)" in text
        assert "<script>alert" not in text
        assert "javascript:" not in text


def test_what_needs_an_app_says_so():
    for module, app in ((urls, "notifications_counter.inbox"), (models, "notifications_counter")):
        without = modify_settings(INSTALLED_APPS={"remove": app})
        with without, pytest.raises(ImproperlyConfigured, match=f"Add '{app}' to INSTALLED_APPS"):
            reload(module)
