"""The description of the JSON is true: it names every address, method and answer, and each answer is as it says."""

from typing import Any

import jsonschema_rs
import pytest
from django.test import Client
from django.urls import reverse
from django.views import View

from notifications_counter.inbox import api
from notifications_counter.inbox.urls import urlpatterns
from notifications_counter.models import Notification
from tests.support import notify

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("with_kinds")]

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


def test_it_is_valid_served_to_anybody_and_names_every_address_and_method() -> None:
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


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_that_it_names_is_given(name, alice, settings) -> None:
    """Also where every page needs a login, and without the middleware that looks at tokens."""
    settings.MIDDLEWARE = [middleware for middleware in settings.MIDDLEWARE if "Csrf" not in middleware]
    settings.MIDDLEWARE += ["django.contrib.auth.middleware.LoginRequiredMiddleware"]
    method, path = name.split()
    row, operation = notify(alice, 1)[0], OPERATIONS[name]
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
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
