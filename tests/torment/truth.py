"""What the database itself notes of every change: triggers write down which call changed whose count, in the call's own
transaction. So it is known of a call that never returned, too, whether it was committed."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db.models import Q

from notifications_counter.counters import unread
from notifications_counter.models import Notification

from .tenants import current, each, here

Changes = dict[str, dict[str, int]]
"""By call, then by owner, written as text."""

WIDE, NARROW = unread.q, unread.q & Q(kind="")
"""What counts, by one release and by another one."""

CALL = {"postgresql": "current_setting('torment.call', true)", "mysql": "@torment_call", "sqlite": "torment_call()"}
SET_CALL = {"postgresql": "SELECT set_config('torment.call', %s, false)", "mysql": "SET @torment_call = %s"}
TEXT = {"postgresql": "text", "mysql": "char(200)", "sqlite": "text"}
NOTE = (
    "INSERT INTO torment_truth"
    " SELECT {call}, CAST({row}.user_id AS {text}), {delta}, {delta} * {row}.id, {row}.kind = ''"
    " FROM (SELECT 1) AS one WHERE {row}.read_at IS NULL;"
)
EVENTS = {"INSERT": ["NEW"], "UPDATE": ["OLD", "NEW"], "DELETE": ["OLD"]}
DELTAS = {"NEW": 1, "OLD": -1}


@contextmanager
def noted() -> Iterator[None]:
    """Note every change from here on."""
    table = (
        "CREATE TABLE torment_truth"
        " (truth_call varchar(200), owner varchar(200), delta int, delta_of_sum bigint, is_narrow boolean)"
    )
    for _ in each():
        _run(*_forget(), table, *_triggers())
    try:
        yield
    finally:
        for _ in each():
            _run(*_forget())


def this_is(call: str) -> None:
    """Changes on the connections of this thread are from now on those of this call."""
    for _ in each():
        _this_is(call)


def _this_is(call: str) -> None:
    connection = current()
    connection.ensure_connection()
    if connection.vendor == "sqlite":
        connection.connection.create_function("torment_call", 0, lambda: call)
        return
    with connection.cursor() as cursor:
        cursor.execute(SET_CALL[connection.vendor], [call])


def owner_name(owner: Any, condition: Q | None = None) -> str:
    """The name of this tenant's owner whose rows are counted by a condition, or by the one of this release."""
    narrow = " by kind" if (condition or unread.q) == NARROW else ""
    return f"{here()} {unread.key(owner)}{narrow}".lstrip()


def take() -> Changes:
    """What was noted since the last time."""
    changes: Changes = defaultdict(dict)
    delta = "delta_of_sum" if unread.sum else "delta"
    for _ in each():
        for call, owner, is_narrow, number in _run(
            f"SELECT truth_call, owner, is_narrow, SUM({delta}) FROM torment_truth GROUP BY 1, 2, 3"
        ):
            for name in [owner_name(owner, condition) for condition in (WIDE, NARROW)[: 1 + bool(is_narrow)]]:
                changes[call][name] = changes[call].get(name, 0) + int(number)
        _run("DELETE FROM torment_truth")
    return changes


def _triggers() -> list[str]:
    table, vendor, statements = Notification._meta.db_table, current().vendor, []
    for event, rows in EVENTS.items():
        call, text = CALL[vendor], TEXT[vendor]
        notes = " ".join(NOTE.format(call=call, text=text, row=row, delta=DELTAS[row]) for row in rows)
        trigger = f"CREATE TRIGGER torment_{event} AFTER {event} ON {table} FOR EACH ROW"
        if vendor == "postgresql":
            function = f"CREATE FUNCTION torment_{event}() RETURNS trigger LANGUAGE plpgsql AS"
            statements.append(f"{function} $$ BEGIN {notes} RETURN NULL; END $$")
            statements.append(f"{trigger} EXECUTE FUNCTION torment_{event}()")
        else:
            statements.append(f"{trigger} BEGIN {notes} END")
    return statements


def _forget() -> list[str]:
    statements = []
    for event in EVENTS:
        if current().vendor == "postgresql":
            statements.append(f"DROP FUNCTION IF EXISTS torment_{event} CASCADE")
        else:
            statements.append(f"DROP TRIGGER IF EXISTS torment_{event}")
    return [*statements, "DROP TABLE IF EXISTS torment_truth"]


def _run(*statements: Any) -> list[Any]:
    """Run statements, and return the rows of the last one."""
    with current().cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []
