"""The inbox as JSON: what it answers and changes, and whether its description is true."""

from typing import Any

import jsonschema_rs
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.views import View

from notifications_counter.counters import unread
from notifications_counter.inbox import api
from notifications_counter.inbox.urls import urlpatterns
from notifications_counter.models import Notification
from tests.support import assert_exact, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]


def url(name: str = "api-inbox", *args) -> str:
    return reverse(f"notifications:{name}", args=args)


def post(client: Client, name: str, body, **extra):
    return client.post(url(name), body, content_type="application/json", **extra)


def titles(response) -> list[str]:
    return [row["title"] for row in response.json()["notifications"]]


# ------------------------------------------------------------------------------------------------------------ list
@pytest.mark.keys
def test_the_list_and_one_of_it(client, alice, bob):
    (other,) = notify(bob, 1)
    *_, row = notify(alice, 3, read=1)
    listed = client.get(url()).json()
    assert [each["title"] for each in listed["notifications"]] == ["2", "1", "0"]
    assert listed["notifications"][0] == client.get(url("api-open", row.pk)).json()
    assert (listed["newer"], listed["older"]) == ("", "")
    assert unread.count(alice) == 2
    for pk in (other.pk, row.pk + 1000, "x", "-1", str(10**30), "9" * 5000):
        response = client.get(url("api-open", pk))
        assert (response.status_code, response.json()) == (404, {"detail": "There is no such notification."})


def test_filters_and_pages(client, alice):
    for title, kind, read in [("a", "sale", None), ("b", "sale", timezone.now()), ("c", "", None)]:
        Notification.objects.create(user=alice, title=title, kind=kind, read_at=read)
    assert titles(client.get(url(), {"unread": "false"})) == ["b"]
    assert titles(client.get(url(), {"kind": "sale", "unread": "true"})) == ["a"]
    since = Notification.objects.get(title="b").created_at.astimezone(timezone.get_fixed_timezone(480))
    assert titles(client.get(url(), {"since": since.isoformat()})) == ["c", "b"]
    page = client.get(url(), {"limit": 2}).json()
    older = client.get(url(), {"limit": 2, "before": page["older"]})
    assert (titles(older), page["newer"], older.json()["older"]) == (["a"], "", "")
    assert titles(client.get(url(), {"limit": 2, "after": older.json()["newer"]})) == ["c", "b"]


# --------------------------------------------------------------------------------------------------------- changes
@pytest.mark.keys
def test_changes(client, alice, bob):
    notify(bob)
    ids = [row.pk for row in notify(alice, 5)]
    assert post(client, "api-mark-as-read", {"ids": ids[:3]}).json() == {"changed": 3, "unread": 2}
    assert post(client, "api-mark-as-read", {"ids": ids[:4]}).json() == {"changed": 1, "unread": 1}
    assert post(client, "api-mark-as-unread", {"ids": ids[:2]}).json() == {"changed": 2, "unread": 3}
    assert post(client, "api-delete", {"ids": [ids[0]]}).json() == {"changed": 1, "unread": 2}
    assert post(client, "api-delete", {"which": "read"}).json() == {"changed": 2, "unread": 2}
    Notification.objects.create(user=alice, title="x", kind="sale")
    assert post(client, "api-mark-as-read", {"which": "all", "kind": "sale"}).json() == {"changed": 1, "unread": 2}
    assert post(client, "api-mark-as-read", {"which": "all"}).json() == {"changed": 2, "unread": 0}
    assert post(client, "api-delete", {"which": "all"}).json() == {"changed": 3, "unread": 0}
    assert unread.counts([alice, bob]) == {alice.pk: 0, bob.pk: 3}
    assert_exact(alice, bob, in_doubt=None)


# ----------------------------------------------------------------------------------------------------- description
DOCUMENT = api.description()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if method in ("get", "post")
}


def status_of(response: Any, operation: dict[str, Any]) -> int:
    """The status of an answer, which is as the description says."""
    answer = operation["responses"][str(response.status_code)]
    if "$ref" in answer:
        answer = DOCUMENT["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    assert set(answer.get("headers", {})) <= set(response.headers)
    assert "private" in response["Cache-Control"]
    if "content" in answer:
        schema = answer["content"][response["Content-Type"]]["schema"]
        jsonschema_rs.validate({**schema, "components": DOCUMENT["components"]}, response.json())
    else:
        assert not response.content
    return response.status_code


@pytest.mark.once
def test_the_description_is_valid_and_names_every_address_and_method() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)
    served = Client().get(reverse("notifications:openapi")).json()
    assert served == {**DOCUMENT, "servers": [{"url": "/notifications"}]}
    views = {f"/{url.pattern}": getattr(url.callback, "view_class", View) for url in urlpatterns}
    assert OPERATIONS.keys() == {
        f"{method} {path.replace('<pk>', '{id}')}"
        for path, view in views.items()
        if issubclass(view, api.APIView)
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if hasattr(view, method.lower())
    }


@pytest.mark.once
@pytest.mark.usefixtures("with_kinds")
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_that_the_description_names_is_given(name, client, alice, settings) -> None:
    """Also where every page needs a login, and without the middleware that looks at tokens."""
    settings.MIDDLEWARE = [middleware for middleware in settings.MIDDLEWARE if "Csrf" not in middleware]
    settings.MIDDLEWARE += ["django.contrib.auth.middleware.LoginRequiredMiddleware"]
    method, path = name.split()
    row, operation = notify(alice, 1)[0], OPERATIONS[name]
    client.handler.enforce_csrf_checks = True
    client.get(reverse("notifications:api-inbox"))
    token = {"X-CSRFToken": client.cookies["csrftoken"].value}

    def ask(body: Any = "", pk: int = row.pk, query: str = "", who: Client = client, **headers: str) -> Any:
        address = f"/notifications{path.replace('{id}', str(pk))}{query}"
        options = {"content_type": headers.pop("content_type", "application/json"), "headers": token | headers}
        return who.generic(method, address, body, **options)

    if method == "GET":
        known = {"If-None-Match": ask()["ETag"]}
        many = "?" + "&".join(["badge=x"] * 1001)
        answers = [ask(), ask(**known), ask(who=Client()), ask(query="?limit=0"), ask(query=many), ask(pk=row.pk + 1)]
    else:
        ids = f'{{"ids": [{row.pk}]}}'
        answers = [ask(ids, **{"X-CSRFToken": ""}), ask(ids, Origin="https://shop.example"), ask(ids, who=Client())]
        assert Notification.objects.filter(read_at=None, seen_at=None).exists()
        answers += [ask(ids), ask("{}"), ask(ids, content_type="text/plain")]
        settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 5
        answers.append(ask(ids))
    assert {status_of(answer, operation) for answer in answers} == {int(status) for status in operation["responses"]}
