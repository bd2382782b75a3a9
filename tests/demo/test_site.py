import pytest
from django.test import Client, override_settings
from django.urls import reverse

from demo_project import settings as demo_settings
from demo_project import traffic
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import entries

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]

# The site's own pages, without its app: nothing else of it matters here.
TEMPLATES = [
    {
        **demo_settings.TEMPLATES[0],
        "DIRS": [demo_settings.BASE_DIR / "demo_project" / "templates"],
    }
]


@pytest.fixture(autouse=True)
def _site():
    with (
        override_settings(
            ROOT_URLCONF="demo_project.urls",
            TEMPLATES=TEMPLATES,
            LOGIN_URL="login",
            LOGIN_REDIRECT_URL="notifications:inbox",
        ),
        entries(COUNTERS=demo_settings.NOTIFICATIONS_COUNTER["COUNTERS"]),
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
    return client.get(reverse("notifications:counts")).json()["unread"]


def test_log_in(user):
    user.set_password("secret")
    user.save()
    client = Client()
    response = client.post(reverse("login"), {"username": user.username, "password": "secret"})
    assert response.url == reverse("notifications:inbox")
    assert client.get(response.url).status_code == 200


@pytest.mark.parametrize("page", ["notifications:inbox", "send", "table"])
def test_pages_ask_for_a_login(page):
    assert Client().get(reverse(page)).url.startswith(reverse("login"))


def test_the_inbox_is_a_page_of_the_site(client, user):
    notify(user, 3)
    page = client.get(reverse("notifications:inbox")).content.decode()
    assert page.count("3 unread notifications") == 3  # the name of the bell, its badge, and the tab of every kind
    assert page.count('<li class="nc-row nc-unread"') == 3
    assert 'action="/logout/"' in page


def test_the_bell_shows_the_number_of_the_inbox(client, user):
    notify(user, 3)
    client.get(reverse("notifications:inbox"))
    assert 'data-badge="unread" data-count="3"' in client.get(reverse("send")).content.decode()


def test_visitors_find_the_notifications(client, user):
    new, old = notify(user, 2)
    old.mark_as_read()
    page = client.get(reverse("notifications:inbox")).content.decode()
    assert traffic.ROW.findall(page) == [("read", str(old.pk)), ("unread", str(new.pk))]


def test_changes_say_what_they_did(client, user):
    notify(user, 2)
    page = client.post(reverse("notifications:mark-as-read"), {"which": "all"}, follow=True).content.decode()
    assert '<div class="nc-messages" role="status"><p>2 notifications marked as read.</p></div>' in page
    assert badge(client) == 0


def test_invented_data_is_labelled(client, staff_client):
    assert "Invented data" in client.get(reverse("notifications:inbox")).content.decode()
    with entries(RECORD_ACTIVITY=True):
        dashboard = reverse("admin:notifications_counter_dashboard_changelist")
        charts = staff_client.get(dashboard).content.decode().partition('id="nc-counter"')[2]
    assert "What was before this demo began is invented." in charts


def test_send(client, make_user):
    one, two, three = make_user(), make_user(), make_user()
    client.post(reverse("send"), {"to": one.username, "title": "Hello"})
    client.post(reverse("send"), {"to": f"{one.username}, {two.username}", "title": "Hello"})
    assert unread.counts([one, two, three]) == {one.pk: 2, two.pk: 1, three.pk: 0}


@pytest.mark.parametrize("comma", ["，", "、"])
def test_names_are_separated_by_chinese_commas_too(client, make_user, comma):
    users = [make_user(), make_user()]
    client.post(reverse("send"), {"to": comma.join(user.username for user in users), "title": "你好"})
    assert unread.counts(users) == {user.pk: 1 for user in users}


def test_send_to_an_unknown_user(client):
    response = client.post(reverse("send"), {"to": "nobody", "title": "Hello"})
    assert "No such user: nobody." in response.content.decode()


def test_only_staff_writes_to_everybody(client, staff_client, user):
    response = client.post(reverse("send"), {"to": "", "title": "Hello"})
    assert "Only staff can send to everybody." in response.content.decode()
    staff_client.post(reverse("send"), {"to": "", "title": "Hello"})
    assert badge(client) == 1


def test_counts_are_for_staff(client, staff_client, user):
    notify(user, 2)
    assert client.get(reverse("table")).status_code == 404
    table = staff_client.get(reverse("table")).context["table"]
    assert {row["user"]: (row["badge"], row["rows"], row["stored"]) for row in table}[user] == (2, 2, 0)
