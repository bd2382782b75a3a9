"""The recipes for REST frameworks list, count, mark and delete the user's own notifications, and no others."""

import sys
from types import ModuleType

import pytest
from django.test import Client, override_settings

from notifications_counter.counters import unread
from tests.docs.test_docs import page, python_blocks, section
from tests.support import assert_exact, notify

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

FRAMEWORKS = {"Django REST framework": "rest_framework", "django-ninja": "ninja"}


@pytest.fixture(params=FRAMEWORKS)
def _site(request, monkeypatch):
    """A site whose app ``inbox`` is made of the recipe."""
    pytest.importorskip(FRAMEWORKS[request.param])
    blocks = python_blocks(section(page("howto/rest-frameworks.md"), request.param))
    for name, code in zip(("inbox.api", "inbox.urls"), blocks, strict=True):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(code, name, "exec"), vars(module))
    with override_settings(ROOT_URLCONF="inbox.urls"):
        yield


def rows(response) -> list[dict]:
    page = response.json()
    return page["results"] if "results" in page else page["rows"]


@pytest.mark.usefixtures("_site")
def test_the_recipe(alice, bob):
    client = Client()
    client.force_login(alice)
    theirs = notify(bob, 2)
    mine = notify(alice, 25)
    listed = rows(client.get("/api/notifications/"))
    assert [row["id"] for row in listed] == [row.pk for row in mine[:4:-1]]
    assert listed[0].keys() == {"id", "kind", "title", "body", "url", "data", "created_at", "read_at"}
    assert client.get("/api/notifications/unread/").json() == {"unread": 25}
    assert client.get(f"/api/notifications/{mine[0].pk}/").json()["title"] == "0"
    ids = [mine[0].pk, mine[1].pk, theirs[0].pk]
    changed = client.post("/api/notifications/mark-as-read/", {"ids": ids}, content_type="application/json")
    assert changed.json() == {"changed": 2, "unread": 23}
    wrong = client.post("/api/notifications/mark-as-read/", {}, content_type="application/json")
    assert wrong.status_code in (400, 422)
    assert client.delete(f"/api/notifications/{mine[2].pk}/").status_code == 204
    for ask in (client.get, client.delete):
        assert ask(f"/api/notifications/{theirs[0].pk}/").status_code == 404
    assert unread.counts([alice, bob]) == {alice.pk: 22, bob.pk: 2}
    assert_exact(alice, bob)
    assert Client().get("/api/notifications/").status_code in (401, 403)
    client.handler.enforce_csrf_checks = True
    assert client.delete(f"/api/notifications/{mine[3].pk}/").status_code == 403
