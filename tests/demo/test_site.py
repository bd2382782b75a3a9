import pytest
from django.test import Client, override_settings
from django.urls import reverse

from demo_project import settings as demo_settings
from demo_project import traffic
from notifications_counter.counters import unread
from tests.support import entries, notify

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]

# The site's own pages, without its app: nothing else of it matters here.
SETTINGS = {
    "ROOT_URLCONF": "demo_project.urls",
    "TEMPLATES": [{**demo_settings.TEMPLATES[0], "DIRS": [demo_settings.BASE_DIR / "demo_project" / "templates"]}],
    "LOGIN_URL": "login",
    "LOGIN_REDIRECT_URL": "notifications:inbox",
}


@pytest.fixture(autouse=True)
def _site():
    with override_settings(**SETTINGS), entries(COUNTERS=demo_settings.NOTIFICATIONS_COUNTER["COUNTERS"]):
        yield


@pytest.fixture
def client(alice):
    client = Client()
    client.force_login(alice)
    return client


def test_log_in(alice):
    alice.set_password("secret")
    alice.save()
    client = Client()
    for page in ("notifications:inbox", "send", "table"):
        assert client.get(reverse(page)).url.startswith(reverse("login"))
    response = client.post(reverse("login"), {"username": "alice", "password": "secret"})
    assert response.url == reverse("notifications:inbox")


def test_the_inbox_and_the_bell_are_parts_of_the_site(client, alice):
    *_, old, new = notify(alice, 4)
    old.mark_as_read()
    page = client.get(reverse("notifications:inbox")).content.decode()
    assert page.count("3 unread notifications") == 3  # the name of the bell, its badge, and the tab of every kind
    assert traffic.ROW.findall(page)[:2] == [("unread", str(new.pk)), ("read", str(old.pk))]
    assert 'action="/logout/"' in page
    assert "Invented data" in page
    assert 'data-badge="unread" data-count="3"' in client.get(reverse("send")).content.decode()


def test_send(client, make_user):
    one, two, three = make_user(), make_user(), make_user()
    names = [one.username, two.username, three.username]
    for to in (names[0], f"{names[0]}, {names[1]}", "，".join(names[:2]), "、".join(names[:2])):
        client.post(reverse("send"), {"to": to, "title": "Hello"})
    assert unread.counts([one, two, three]) == {one.pk: 4, two.pk: 3, three.pk: 0}
    response = client.post(reverse("send"), {"to": "nobody", "title": "Hello"})
    assert "No such user: nobody." in response.content.decode()


def test_only_staff_writes_to_everybody_and_sees_all_counts(client, admin_client, alice):
    response = client.post(reverse("send"), {"to": "", "title": "Hello"})
    assert "Only staff can send to everybody." in response.content.decode()
    admin_client.post(reverse("send"), {"to": "", "title": "Hello"})
    assert client.get(reverse("table")).status_code == 404
    table = admin_client.get(reverse("table")).context["table"]
    assert {row["user"]: (row["badge"], row["rows"], row["stored"]) for row in table}[alice] == (1, 1, 0)
