"""The description of the JSON is true: whatever is asked, the answer is one that it allows, and nobody else's."""

from functools import cache
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.views import View
from hypothesis import HealthCheck, Phase, assume, given
from hypothesis import settings as examples

from notifications_counter.inbox import api
from notifications_counter.inbox.urls import urlpatterns
from notifications_counter.models import Notification
from tests.support import assert_exact

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("with_kinds")]

DOCUMENT = {**api.description(), "servers": [{"url": "/notifications"}]}
OPERATIONS = [
    f"{method.upper()} {path}"
    for path, methods in DOCUMENT["paths"].items()
    for method in methods
    if method in ("get", "post")
]
NOT_SET = object()
TOKEN = "a" * 32
# Nothing is shrunk: the requests are short, and a run has to end soon.
FEW = examples(
    max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)


@cache
def description() -> Any:
    import schemathesis  # it takes half a second, also of workers that run no test of this module

    # The tests log in by themselves.
    config = schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})
    found = schemathesis.openapi.from_dict(DOCUMENT, config=config)
    found.app = WSGIHandler()
    return found


@cache
def operations() -> dict[str, Any]:
    return {operation.ok().label: operation.ok() for operation in description().get_all_operations()}


@pytest.fixture
def session(alice, settings) -> dict[str, dict[str, str]]:
    """What a browser sends in which alice is logged in."""
    settings.ALLOWED_HOSTS = ["localhost"]
    client = Client()
    client.force_login(alice)
    cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
    return {"cookies": {"sessionid": cookie, "csrftoken": TOKEN}, "headers": {"X-CSRFToken": TOKEN}}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "positive") for name in OPERATIONS),
        *((name, "negative") for name in OPERATIONS if name != "GET /counts/"),  # no way to ask it wrongly
    ],
)
def test_fuzz(name, mode, session, alice, bob) -> None:
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import ignored_auth

    def notify(user, rest: int) -> None:
        Notification.objects.bulk_create(
            Notification(
                pk=pk, user=user, kind=str(pk), title=user.username, read_at=timezone.now() if pk % 3 else None
            )
            for pk in range(rest, 10, 2)
        )

    @given(operations()[name].as_strategy(generation_mode=GenerationMode(mode)))
    @FEW
    def check(case: Any) -> None:
        if case.path_parameters:  # a fixed path comes first
            assume(case.path.format(**case.path_parameters) not in description().raw_schema["paths"])
        if not Notification.objects.for_user(alice).exists():
            notify(alice, 1)
        if mode == "positive":  # ask for rows that there are
            if case.path_parameters:
                case.path_parameters["id"] = int(case.path_parameters["id"]) % 10
            if isinstance(case.body, dict) and "ids" in case.body:
                case.body["ids"] = [int(pk) % 10 for pk in case.body["ids"]]
        # The check would take the session for one that was made up.
        response = case.call_and_validate(excluded_checks=[ignored_auth], **session)
        assert b"bob" not in response.content

    notify(bob, 0)
    others = list(Notification.objects.for_user(bob).values())
    check()
    assert list(Notification.objects.for_user(bob).values()) == others
    assert_exact(alice, bob)


def test_it_is_valid_and_served_to_anybody() -> None:
    description().validate()
    assert Client().get(reverse("notifications:openapi")).json() == DOCUMENT


def test_it_names_every_address_and_method() -> None:
    views = {f"/{url.pattern}": getattr(url.callback, "view_class", View) for url in urlpatterns}
    found = {
        f"{method} {path.replace('<pk>', '{id}')}"
        for path, view in views.items()
        if issubclass(view, api.APIView)
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if hasattr(view, method.lower())
    }
    assert found == set(OPERATIONS) == operations().keys()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_that_it_names_is_given(name, session, alice, settings) -> None:
    pk = Notification.objects.create(user=alice, title="x").pk
    from schemathesis.specs.openapi import checks as its

    operation = operations()[name]

    def ask(body=NOT_SET, query=None, path=None, **changed) -> int:
        content = {} if body is NOT_SET else {"body": body, "media_type": "application/json"}
        case = operation.Case(path_parameters={"id": path or pk}, query=query or {}, **content)
        sent = {**session, **changed}
        response = case.call(**sent, app=operation.app)
        checks = [its.status_code_conformance, its.content_type_conformance, its.response_schema_conformance]
        case.validate_response(response, checks=[*checks, its.response_headers_conformance])
        etags.extend(response.headers.get("etag", []))
        return response.status_code

    etags: list[str] = []
    choice = {"ids": []} if operation.method == "post" else NOT_SET
    statuses = {ask(choice), ask(choice, cookies={"csrftoken": TOKEN}), ask(choice, headers={})}
    if operation.method == "post":
        statuses |= {ask({}), ask(choice, headers={**session["headers"], "Content-Type": "text/plain"})}
        settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 5
        statuses.add(ask(choice))
    else:
        statuses |= {ask(headers={"If-None-Match": etags[0]}), ask(query={"limit": 0}), ask(path=pk + 1)}
        statuses.add(ask(query={"badge": ["x"] * 1001}))
    assert statuses == {int(status) for status in operation.definition.raw["responses"]}
