"""Measures how rows are counted for many owners, in every state of the database's statistics."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from django.db import connection
from django.utils import timezone

from notifications_counter.declaration.owners import Owners
from notifications_counter.sql.owners import arrays, is_one_of

from .bench import OURS, Report, race, size
from .bench import table as shown
from .models import IntegerKeys, TextKeys, UuidKeys
from .rivals import quoted, sql, vacuum

JOIN = "a join with `unnest()`"
STATES = ("analyzed", "analyzed while tiny", "no statistics")
KEYS: dict[Any, Any] = {IntegerKeys: int, UuidKeys: lambda i: UUID(int=i * 2**64), TextKeys: "user-{:08}".format}
USERS, EACH, TENANTS = 20_000, 10, 20
MANUAL = {"postgresql": "SET (autovacuum_enabled = off)", "mysql": "STATS_PERSISTENT = 1, STATS_AUTO_RECALC = 0"}
"""How a table's statistics stay as they are."""


def counting(report: Report, quick: bool) -> str:
    """Count the rows of owners by this app's condition, and on PostgreSQL by a join."""
    lines = []
    for model, key in KEYS.items():
        owners = [(key(1 + i % TENANTS), key(i)) for i in range(USERS // (4 if quick else 1))]
        for state in STATES:
            fill(model, owners, state)
            for columns in (("user",), ("tenant", "user")):
                for number in (1, 100, 1_000) if quick else (1, 100, 1_000, 4_000):
                    some = [owner[-len(columns) :] for owner in owners[:: len(owners) // number]]
                    does = {OURS: partial(count, model, columns, some)}
                    if connection.vendor == "postgresql" and number <= 1_000:  # of 4,000, it can take minutes
                        does[JOIN] = partial(count, model, columns, some, joins=True)
                    about = f"{model.__name__}, {len(columns)} columns, {state}, {size(number)} owners"
                    found = race(does, rounds=2 if quick else 5, units=number, about=about)
                    lines.append([about, found.cell(OURS), found.cell(JOIN)])
    report.blocks[f"counting, {connection.display_name}"] = shown(["for each owner", OURS, JOIN], lines)
    return "By each database:"


def fill(model: Any, owners: list[Any], state: str) -> None:
    """Create unread rows in a new table."""
    with connection.schema_editor() as editor:
        editor.delete_model(model)
        editor.create_model(model)
        if connection.vendor in MANUAL:
            editor.execute(f"ALTER TABLE {quoted(model)} {MANUAL[connection.vendor]}")
    if state == "analyzed while tiny":
        some, now = owners[:9], timezone.now()
        model.objects.bulk_create(model(tenant=tenant, user=user, read_at=now) for tenant, user in some)
        vacuum(model)
        sql(f"DELETE FROM {quoted(model)}")
    for _ in range(EACH):
        model.objects.bulk_create((model(tenant=tenant, user=user) for tenant, user in owners), batch_size=5_000)
    if state == "analyzed":
        vacuum(model)


def count(model: Any, columns: tuple[str, ...], pks: list[Any], joins: bool = False) -> None:
    owner: Any = Owners("", model._meta.label, columns, model._meta.label, is_used=True)
    names = ", ".join(map(connection.ops.quote_name, columns))
    if joins:
        condition = f"({names}) IN (SELECT * FROM unnest({arrays(owner, connection)}))"
        params = owner.db_columns(pks, connection)
    else:
        condition, params = is_one_of(owner, [connection.ops.quote_name(name) for name in columns], pks, connection)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {names}, COUNT(*) FROM {quoted(model)} WHERE read_at IS NULL AND {condition} GROUP BY {names}",
            params,
        )
        assert len(cursor.fetchall()) == len(pks)
