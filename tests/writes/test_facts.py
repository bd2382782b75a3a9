"""What an INSERT says about its rows without asking the database. tests/statements tries facts on real statements."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, models
from django.test.utils import isolate_apps

from notifications_counter.declaration.condition import NOT_NULL
from notifications_counter.internals import DeferredAttribute
from notifications_counter.writes.facts import UNKNOWN, Inserted, contribution

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
    ("written", "facts"),
    [
        ({"number": 1}, {"number": 1}),
        ({"number": 1, "text": "x", "file": "x", "image": "x"}, {"number": 1, "text": "x"}),
        ({"number": 1, "stamp": 2}, {}),
        ({"number": 1, "sized": "x"}, {}),
        ({"number": 1, "watched": 2}, {"number": 1}),
        ({"number": 1, "doubled": 2}, {"number": 1}),
        ({"number": 1, "touched": None}, {"number": 1, "touched": NOT_NULL}),
    ],
    ids=lambda given: " ".join(given),
)
def test_what_an_instance_says_of_its_row(written, facts):
    """Only fields of Django's write what the instance has, and change nothing else."""
    counter: Any = SimpleNamespace(columns=[Row._meta.get_field(name) for name in written])
    assert Inserted(Row, counter, written, raw=False).facts(Row(**written)) == facts


def test_a_fixture_is_written_as_it_is():
    counter: Any = SimpleNamespace(columns=[Row._meta.get_field("touched")])
    assert Inserted(Row, counter, ["touched"], raw=True).facts(Row(touched=None)) == {"touched": None}


@pytest.mark.parametrize(("most", "names"), [(3, False), (4, True), (None, True)])
def test_a_text_that_a_database_may_cut_names_nobody(most, names):
    counter: Any = SimpleNamespace(
        owner_attnames=["owner"],
        key_fields=[models.CharField(max_length=most)],
        has_several_columns=False,
        encode=lambda columns: columns[0],
        condition=SimpleNamespace(value_of=lambda *_: 1),
    )
    assert contribution(counter, {"owner": "long"}, connection).owner == ("long" if names else UNKNOWN)
