"""What the database itself notes of every change: triggers write down which call changed whose count, in the call's own
transaction. So it is known of a call that never returned, too, whether it was committed."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection
from django.db.models import Q

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import execute

from .history import Numbers

WIDE, NARROW = unread.q, unread.q & Q(kind="")
"""What counts, by one release and by another one."""

CLIENTS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}
CALL = {"postgresql": "current_setting('torment.call', true)", "mysql": "@torment_call"}
SET_CALL = {"postgresql": "SELECT set_config('torment.call', %s, false)", "mysql": "SET @torment_call = %s"}
TEXT = {"postgresql": "text", "mysql": "char(200)"}
TABLE = (
    "CREATE TABLE torment_truth"
    " (truth_call varchar(200), owner varchar(200), delta int, delta_of_sum bigint, is_narrow boolean)"
)
NOTE = (
    "INSERT INTO torment_truth"
    " SELECT {call}, CAST({row}.user_id AS {text}), {delta}, {delta} * {row}.id, {row}.kind = ''"
    " FROM (SELECT 1) AS one WHERE {row}.read_at IS NULL;"
)
DELTAS = {"INSERT": {"NEW": 1}, "UPDATE": {"OLD": -1, "NEW": 1}, "DELETE": {"OLD": -1}}


def clients() -> set[int]:
    """The other connections that the database has."""
    return {client for (client,) in execute(CLIENTS[connection.vendor])}


@contextmanager
def noted() -> Iterator[None]:
    """Note every change from here on."""
    execute(TABLE, *_triggers())
    try:
        yield
    finally:
        what = "FUNCTION torment_{} CASCADE" if connection.vendor == "postgresql" else "TRIGGER torment_{}"
        execute(*(f"DROP {what.format(event)}" for event in DELTAS), "DROP TABLE torment_truth")


def this_is(call: str) -> None:
    """Changes on the connection of this thread are from now on those of this call."""
    with connection.cursor() as cursor:
        cursor.execute(SET_CALL[connection.vendor], [call])


def owner_name(owner: Any, condition: Q | None = None) -> str:
    """The name of an owner whose rows are counted by a condition, or by the one of this release."""
    return f"{unread.pk_of(owner)}{' by kind' if (condition or unread.q) == NARROW else ''}"


def take() -> dict[str, Numbers]:
    """What calls have changed since the last time."""
    changes: dict[str, Numbers] = defaultdict(dict)
    delta = "delta_of_sum" if unread.sum else "delta"
    for call, owner, is_narrow, number in execute(
        f"SELECT truth_call, owner, is_narrow, SUM({delta}) FROM torment_truth GROUP BY 1, 2, 3"
    ):
        for name in [owner_name(owner, condition) for condition in (WIDE, NARROW)[: 1 + bool(is_narrow)]]:
            changes[call][name] = changes[call].get(name, 0) + int(number)
    execute("DELETE FROM torment_truth")
    return changes


def _triggers() -> Iterator[str]:
    vendor = connection.vendor
    for event, deltas in DELTAS.items():
        call, text = CALL[vendor], TEXT[vendor]
        notes = " ".join(NOTE.format(call=call, text=text, row=row, delta=delta) for row, delta in deltas.items())
        trigger = f"CREATE TRIGGER torment_{event} AFTER {event} ON {Notification._meta.db_table} FOR EACH ROW"
        if vendor == "postgresql":
            function = f"CREATE FUNCTION torment_{event}() RETURNS trigger LANGUAGE plpgsql AS"
            yield f"{function} $$ BEGIN {notes} RETURN NULL; END $$"
            yield f"{trigger} EXECUTE FUNCTION torment_{event}()"
        else:
            yield f"{trigger} BEGIN {notes} END"
