"""The recipe for an inbox of only some notifications leaves the others alone, whichever URL is asked."""

import sys
from types import ModuleType

import pytest
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from notifications_counter.inbox import urls
from notifications_counter.models import Notification
from tests.docs.test_docs import page, python_blocks, section

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

WITHOUT_ROWS = {"counts", "stream", "openapi"}


@pytest.fixture(autouse=True)
def _site(monkeypatch):
    (code,) = python_blocks(section(page("howto/inbox.md"), "Only some notifications"))
    module = ModuleType("urls_of_sales")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, module.__name__, "exec"), vars(module))
    with override_settings(ROOT_URLCONF=module.__name__):
        yield


def test_others_are_neither_seen_nor_changed(alice):
    client = Client()
    client.force_login(alice)
    for read_at in (None, timezone.now()):
        Notification.objects.create(user=alice, title="secret", kind="private", read_at=read_at)
    others = list(Notification.objects.order_by("pk").values())
    for name in {pattern.name for pattern in urls.urlpatterns} - WITHOUT_ROWS:
        url = reverse(f"notifications:{name}", args=[others[0]["id"]] if name in ("open", "api-open") else [])
        assert b"secret" not in client.get(url).content
        for which in ("all", "read"):
            client.post(url, {"which": which})
            client.post(url, {"which": which}, content_type="application/json")
    assert list(Notification.objects.order_by("pk").values()) == others
    Notification.objects.create(user=alice, title="for all to see", kind="sale")
    assert b"for all to see" in client.get(reverse("notifications:inbox")).content
