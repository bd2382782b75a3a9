"""What an INSERT says about its rows without asking the database. tests/statements tries facts on real statements."""

import pytest
from django.db import models

from notifications_counter.writes.facts import sets_others

pytestmark = pytest.mark.once


class Stamp(models.IntegerField):
    """As a field of another package: what it writes, it makes up, and it may set other attributes."""

    def pre_save(self, model_instance, add):
        model_instance.closed = True
        return super().pre_save(model_instance, add)


@pytest.mark.parametrize(
    ("other", "known"),
    [
        (models.CharField(), True),
        (models.FileField(), True),
        (models.ImageField(), True),
        (models.ImageField(width_field="priority"), False),
        (Stamp(), False),
    ],
    ids=["text", "file", "image", "image that sets a column", "unknown field"],
)
def test_fields_that_may_set_others_hide_what_is_written(other, known):
    assert sets_others(other) is not known
