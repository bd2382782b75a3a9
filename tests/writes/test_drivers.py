"""What the drivers of MariaDB and MySQL don't tell, the flusher finds."""

from collections.abc import Iterator

import pytest
from django.db import connection, transaction

from notifications_counter.counters import unread
from tests.support import assert_exact, assert_heals, create, entries, execute, notify, rows

from .test_transactions import by_hand

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("healed"),
    pytest.mark.skipif(connection.vendor != "mysql", reason="Other drivers tell it."),
]


def assert_found(user):
    with entries(WALK_SECONDS=0.001):
        unread.heal()
    assert_heals(user)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_sql_has_begun(alice, end):
    """mysqlclient knows of none."""
    notify(alice)
    assert unread.count(alice) == 3
    with by_hand("SQL", end):
        create(alice)
        assert unread.count(alice) == 4
    assert rows(alice) == {"COMMIT": 4, "ROLLBACK": 3}[end]
    assert_found(alice)


@pytest.fixture
def undo() -> Iterator[None]:
    execute("CREATE PROCEDURE roll_back() ROLLBACK")
    yield
    execute("DROP PROCEDURE roll_back")


@pytest.mark.parametrize("how", ["CALL", "callproc"])
def test_a_procedure_that_rolls_back(alice, undo, how):
    notify(alice)
    with transaction.atomic():
        create(alice)
        if how == "CALL":
            execute("CALL roll_back()")
        else:
            with connection.cursor() as cursor:
                cursor.callproc("roll_back")
        create(alice, 2)
    assert rows(alice) == 5
    if how == "CALL":
        assert_exact(alice, in_doubt=None)
    assert_found(alice)
