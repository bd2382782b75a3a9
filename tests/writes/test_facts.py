"""What an INSERT says about its rows without asking the database. tests/statements tries facts on real statements."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, models
from django.test.utils import isolate_apps
from django.utils.translation import gettext_lazy

from notifications_counter.internals import DeferredAttribute
from notifications_counter.writes.facts import UNNAMED, contribution, inserted_names

pytestmark = pytest.mark.once


class Stamp(models.IntegerField):
    """As a field of another package: what it writes, it makes up, and it may set other attributes."""

    def pre_save(self, model_instance: Any, add: bool) -> Any:
        model_instance.number = 7
        return super().pre_save(model_instance, add)


class Watched(models.IntegerField):
    """Its attribute is not what is written."""

    class descriptor_class(DeferredAttribute):
        def __get__(self, instance: Any, cls: Any = None) -> Any:
            return 7


class Doubled(models.IntegerField):
    def get_prep_value(self, value: Any) -> Any:
        return 2 * value


with isolate_apps("tests.accounts"):

    class Row(models.Model):
        number = models.IntegerField()
        text = models.CharField()
        file = models.FileField()
        image = models.ImageField()
        sized = models.ImageField(width_field="number")
        stamp = Stamp()
        watched = Watched()
        doubled = Doubled()
        touched = models.DateTimeField(auto_now=True)

        class Meta:
            app_label = "accounts"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("number", ["number"]),
        ("number text file image", ["number", "text"]),
        ("number stamp", []),
        ("number sized", []),
        ("number watched", ["number"]),
        ("number doubled", ["number"]),
        ("number touched", ["number"]),
    ],
)
def test_what_an_instance_says_of_its_row(written, said):
    """Only fields of Django's write what the instance has, and change nothing else."""
    counter: Any = SimpleNamespace(columns=[Row._meta.get_field(name) for name in written.split()])
    assert inserted_names.__wrapped__(Row, counter, tuple(written.split())) == said


@pytest.mark.parametrize(
    ("value", "most", "names"),
    [("long", 3, False), ("long", 4, True), ("long", None, True), (gettext_lazy("long"), 4, False)],
)
def test_a_text_that_may_be_stored_as_another_names_nobody(value, most, names):
    counter: Any = SimpleNamespace(
        owner_attnames=["owner"],
        owner_fields=[models.CharField()],
        pk_fields=[models.CharField(max_length=most)],
        owner_keys=lambda columns: columns[0],
        condition=SimpleNamespace(value_of=lambda *_: 1),
    )
    assert contribution(counter, {"owner": value}, connection).owner_key == ("long" if names else UNNAMED)
