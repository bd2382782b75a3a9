"""Counters of an application's own: other keys, relations and declarations. Its statements: tests/statements."""

from uuid import uuid4

import pytest
from django.db.models import Q

from notifications_counter.counters import Counter, all_counters
from notifications_counter.exceptions import ConfigurationError
from tests.support import assert_exact, make_counter
from tests.tasks.counters import open_transfers, sent_transfers
from tests.tasks.models import Project, Task, Transfer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("all_healed")]


def check_transfers(*projects: Project) -> None:
    assert_exact(*projects, counter=sent_transfers, in_doubt=None)
    assert_exact(*projects, counter=open_transfers, in_doubt=None)


def test_a_key_by_default(house, garden):
    """Such an instance is inserted, unless it is told not to."""
    one = Transfer(sender=house, receiver=house)
    one.save()
    Transfer(pk=one.pk, sender=garden, receiver=garden).save(force_update=True)
    assert (sent_transfers.count(house), sent_transfers.count(garden)) == (0, 1)
    again = Transfer.objects.get()
    again.pk = None
    again.save()
    assert sent_transfers.count(garden) == 2
    check_transfers(house, garden)


def test_a_key_in_another_form(house, garden):
    """An instance is given its key as a text, as a form has it, and deleted by it."""
    text = str(uuid4()).upper()
    Transfer.objects.create(id=text, sender=house, receiver=garden)
    assert sent_transfers.count(house) == 1
    Transfer(pk=text).delete()
    created = Transfer.objects.create(id=uuid4().hex, sender=house, receiver=garden)
    created.delete()
    assert (Transfer.objects.count(), sent_transfers.count(house), open_transfers.count(garden)) == (0, 0, 0)
    check_transfers(house, garden)


@pytest.mark.once
def test_a_declaration_that_other_processes_may_not_have():
    about = {"owner": "project", "condition": Q(done=False), "totals": "tasks.ProjectTaskCount", "field": "open_count"}
    with pytest.raises(ConfigurationError, match="Declare it in the module 'counters' of an app in INSTALLED_APPS"):
        Counter("late", source="tasks.Task", **about)
    with pytest.raises(ConfigurationError, match="must be a Q object"):
        make_counter("late", source="tasks.Task", **about | {"condition": {"done": False}})
    for name in ("", "a{b", "x" * 101, "a\n"):
        with pytest.raises(ConfigurationError, match="cannot be the name of a counter"):
            make_counter(name, source="tasks.Task", **about)
    for source in ("Task", "tasks.models.Task", Task):
        with pytest.raises(ConfigurationError, match="The source of counter 'late' must be a string such as"):
            make_counter("late", source=source, **about)
    assert "late" not in {counter.name for counter in all_counters()}
