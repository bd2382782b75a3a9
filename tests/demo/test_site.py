import pytest
from django.test import Client, override_settings
from django.urls import reverse

from demo_project import settings as demo_settings
from notifications_counter.counters import unread
from notifications_counter.models import Notification

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]

# The site's own pages, without its app: nothing else of it matters here.
TEMPLATES = [
    {
        **demo_settings.TEMPLATES[0],
        "DIRS": [demo_settings.BASE_DIR / "demo_project" / "templates"],
        "OPTIONS": {
            **demo_settings.TEMPLATES[0]["OPTIONS"],
            "libraries": {"humanize": "django.contrib.humanize.templatetags.humanize"},
        },
    }
]


@pytest.fixture(autouse=True)
def _site():
    with override_settings(
        ROOT_URLCONF="demo_project.urls", TEMPLATES=TEMPLATES, LOGIN_URL="login", LOGIN_REDIRECT_URL="inbox"
    ):
        yield


@pytest.fixture
def user(make_user):
    return make_user()


@pytest.fixture
def client(user):
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def staff_client(make_user):
    client = Client()
    client.force_login(make_user(is_superuser=True))
    return client


def notify(user, n=1):
    return [Notification.objects.create(user=user, title=f"Title {i}") for i in range(n)]


def badge(client):
    return client.get(reverse("badge")).json()["unread"]


def test_log_in(user):
    user.set_password("secret")
    user.save()
    client = Client()
    response = client.post(reverse("login"), {"username": user.username, "password": "secret"})
    assert response.url == reverse("inbox")
    assert client.get(response.url).status_code == 200


@pytest.mark.parametrize("page", ["inbox", "badge", "send", "counts"])
def test_pages_ask_for_a_login(page):
    assert Client().get(reverse(page)).url.startswith(reverse("login"))


def test_inbox_shows_the_badge_and_the_notifications(client, user):
    notify(user, 3)
    page = client.get(reverse("inbox")).content.decode()
    assert page.count('<li class="unread"') == 3
    assert 'aria-label="unread">3</span>' in page


def test_only_safe_urls_are_links(client, user):
    Notification.objects.create(user=user, title="Safe", url="/exports/7/")
    Notification.objects.create(user=user, title="Unsafe", url="javascript:alert(1)")
    page = client.get(reverse("inbox")).content.decode()
    assert '<h2><a href="/exports/7/">Safe</a></h2>' in page
    assert "<h2>Unsafe</h2>" in page


def test_inbox_without_unread_hides_the_badge(client):
    assert 'aria-label="unread" hidden>' in client.get(reverse("inbox")).content.decode()


def test_inbox_goes_back_page_by_page(client, user):
    notify(user, 25)
    first = client.get(reverse("inbox")).context
    assert [row.title for row in first["notifications"]] == [f"Title {n}" for n in range(24, 4, -1)]
    second = client.get(reverse("inbox"), {"before": first["older"]}).context
    assert [row.title for row in second["notifications"]] == [f"Title {n}" for n in range(4, -1, -1)]
    assert second["older"] is None


def test_only_unread(client, user):
    notify(user, 2)[0].mark_as_read()
    assert [row.title for row in client.get(reverse("inbox") + "?unread").context["notifications"]] == ["Title 1"]


def test_read_and_unread_again(client, user):
    row, _ = notify(user, 2)
    client.post(reverse("read", args=[row.pk]))
    assert badge(client) == 1
    client.post(reverse("unread", args=[row.pk]))
    assert badge(client) == 2


def test_delete(client, user):
    row, _ = notify(user, 2)
    client.post(reverse("delete", args=[row.pk]))
    assert badge(client) == Notification.objects.for_user(user).count() == 1


def test_mark_all_as_read_then_delete_read(client, user):
    notify(user, 2)
    page = client.post(reverse("read-all"), follow=True).content.decode()
    assert "2 notifications marked as read." in page
    assert badge(client) == 0
    notify(user)
    client.post(reverse("delete-read"))
    assert badge(client) == Notification.objects.for_user(user).count() == 1


@pytest.mark.parametrize("action", ["read", "unread", "delete"])
def test_rows_of_others_are_out_of_reach(client, make_user, action):
    other = make_user()
    new, old = notify(other, 2)
    old.mark_as_read()
    for row in (new, old):
        client.post(reverse(action, args=[row.pk]))
    assert unread.count(other) == 1
    assert Notification.objects.for_user(other).count() == 2


@pytest.mark.parametrize("action", ["read", "unread", "delete", "read-all", "delete-read"])
def test_changes_are_posted_with_a_token(client, user, action):
    row = notify(user)[0]
    path = reverse(action, args=[] if "-" in action else [row.pk])
    assert client.get(path).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(user)
    assert strict.post(path).status_code == 403


def test_send(client, make_user):
    one, two, three = make_user(), make_user(), make_user()
    client.post(reverse("send"), {"to": one.username, "title": "Hello"})
    client.post(reverse("send"), {"to": f"{one.username}, {two.username}", "title": "Hello"})
    assert unread.counts([one, two, three]) == {one.pk: 2, two.pk: 1, three.pk: 0}


def test_send_to_an_unknown_user(client):
    response = client.post(reverse("send"), {"to": "nobody", "title": "Hello"})
    assert "No such user: nobody." in response.content.decode()


def test_only_staff_writes_to_everybody(client, staff_client, user):
    response = client.post(reverse("send"), {"to": "", "title": "Hello"})
    assert "Only staff may write to everybody." in response.content.decode()
    staff_client.post(reverse("send"), {"to": "", "title": "Hello"})
    assert badge(client) == 1


def test_counts_are_for_staff(client, staff_client, user):
    notify(user, 2)
    assert client.get(reverse("counts")).status_code == 302
    table = staff_client.get(reverse("counts")).context["table"]
    assert {row["user"]: (row["badge"], row["rows"], row["stored"]) for row in table}[user] == (2, 2, 0)
