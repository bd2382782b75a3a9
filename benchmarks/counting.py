"""Measures how rows are counted for many owners, in every state of PostgreSQL's statistics."""

from __future__ import annotations

from functools import partial

from django.db.models import BooleanField, Count
from django.db.models.expressions import RawSQL

from notifications_counter.counters import unread
from notifications_counter.sql.counts import count_rows

from .bench import OURS, Report, race, size
from .bench import table as shown
from .rivals import Ours, empty, quoted, rows, sql, users

STATES = {"vacuumed": "VACUUM ANALYZE", "analyzed only": "ANALYZE", "analyzed while tiny": "", "no statistics": ""}
FORMS = {
    "a join with `unnest()`": "IN (SELECT * FROM unnest(%s::bigint[]))",
    "an array from a sub-select": "= ANY((SELECT %s::bigint[])::bigint[])",
}


def counting(report: Report, quick: bool) -> str:
    """Count the rows of owners by this app, and by other statements."""
    table = quoted(Ours.model)

    def count(form: str, owners: list[int]) -> None:
        owned = RawSQL(f"{table}.user_id {form}", [owners], BooleanField())
        found = (
            Ours.model.objects.filter(owned, read_at=None).order_by().values_list("user_id").annotate(number=Count("*"))
        )
        assert len(found) == len(owners)

    lines = []
    for state, how in STATES.items():
        for each in (1, 10):
            empty()
            users(20_000)
            sql(f"TRUNCATE {table}")
            sql(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            if state == "analyzed while tiny":
                rows(Ours.model, 1, 10)
                sql(f"UPDATE {table} SET read_at = CURRENT_TIMESTAMP")
                sql(f"ANALYZE {table}")
                sql(f"DELETE FROM {table}")
            rows(Ours.model, 20_000, each)
            if how:
                sql(f"{how} {table}")
            for number in (1, 100, 1_000) if quick else (1, 100, 1_000, 4_000):
                owners = list(range(1, 20_001, 20_000 // number))
                does = {OURS: partial(count_rows, unread, owners)}
                does |= {name: partial(count, form, owners) for name, form in FORMS.items()}
                about = f"{state}, {size(number)} owners of {each}"
                found = race(does, rounds=2 if quick else 5, units=number, about=about)
                lines.append([about, *map(found.cell, does)])
    sql(f"ALTER TABLE {table} RESET (autovacuum_enabled)")
    return shown(["for each owner", OURS, *FORMS], lines)
