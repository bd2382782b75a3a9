"""What a log makes of savepoints, without any server."""

from typing import Any

import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st

from notifications_counter.writes.ledger import SAVEPOINT
from notifications_counter.writes.transaction import TransactionLog

pytestmark = pytest.mark.once


STATEMENTS = {"set": "SAVEPOINT", "free": "RELEASE SAVEPOINT", "back": "ROLLBACK TO"}


def log_of(statements: str) -> str:
    """What is left of a log after statements: a letter is a change, the others are about savepoints of that name."""
    log = TransactionLog(connection)
    for statement in statements.split():
        kind, _, name = statement.partition(":")
        if name:
            found = SAVEPOINT.match(f"{STATEMENTS[kind]} {name}")
            assert found
            log.after_savepoint(found)
        else:
            log.add({None: {statement: 1}})  # type: ignore[dict-item]
    return "".join(owner_key for _, deltas in log.entries for owner_key in deltas)


@pytest.mark.parametrize(
    ("statements", "left"),
    [
        ("a back:older b", "b"),
        ("a free:older b", "ab"),
        ("a set:X b back:x c", "ac"),
        ('a set:"x" b back:x c', "ac"),
        ("a set:`x`; b back:x c", "ac"),
    ],
)
def test_savepoints(statements, left):
    assert log_of(statements) == left


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        ("SAVEPOINT s1", ("SAVEPOINT", None, "s1")),
        ('  savepoint "s1"', ("savepoint", None, '"s1"')),
        ("RELEASE SAVEPOINT `s1`", (None, "RELEASE", "`s1`")),
        ("RELEASE s1", (None, "RELEASE", "s1")),
        ("ROLLBACK TO SAVEPOINT s1", (None, None, "s1")),
        ("rollback to s1;", (None, None, "s1;")),
        ("ROLLBACK WORK TO s1", (None, None, "s1")),
        ("ROLLBACK TRANSACTION TO SAVEPOINT s1", (None, None, "s1")),
        ("ROLLBACK", None),
        ("SELECT 'SAVEPOINT s1'", None),
        ("UPDATE rollback SET to = 1", None),
    ],
)
def test_statements_about_savepoints(statement, parts):
    found = SAVEPOINT.match(statement)
    assert (found and found.groups()) == parts


class Model:
    """Savepoints as PostgreSQL has them: a stack, of which the newest of a name counts."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.stack: list[tuple[str, list[str]]] = []

    def run(self, kind: str, name: str) -> bool:
        """False for what a database would refuse."""
        if kind == "change":
            self.entries.append(name)
        elif kind == "set":
            self.stack.append((name, list(self.entries)))
        else:
            at = max((i for i, (known, _) in enumerate(self.stack) if known == name), default=None)
            if at is None:
                return False
            if kind == "free":
                del self.stack[at:]
            else:
                self.entries = list(self.stack[at][1])
                del self.stack[at + 1 :]
        return True


@settings(max_examples=300, deadline=None, database=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["change", "change", "set", "free", "back"]), st.sampled_from("xyz")), max_size=30
    )
)
def test_any_savepoints(steps: list[Any]):
    model = Model()
    done = [(kind, name) for kind, name in steps if model.run(kind, name)]
    statements = " ".join(name if kind == "change" else f"{kind}:{name}" for kind, name in done)
    assert log_of(statements) == "".join(model.entries)
