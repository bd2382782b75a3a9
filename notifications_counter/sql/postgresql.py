"""PostgreSQL: arrays, which for integer keys are bound as one text each."""

from typing import Any

from .target import Chunk, Target


def apply(target: Target, batch: int, chunk: Chunk) -> None:
    """Add the deltas of a chunk where its batch is not in the row yet."""
    t = target
    key_type = t.counter.key_field.rel_db_type(t.connection)
    users: Any
    deltas: Any
    if chunk.joined:
        users, deltas = (f"{{{text}}}" for text in chunk.joined)
    else:
        users, deltas = t.db_keys(chunk), chunk.deltas
    with t.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {t.table} AS stored ({t.columns})"
            f" SELECT owner, delta, {t.placeholders}"
            f" FROM unnest(%s::{key_type}[], %s::bigint[]) AS batch (owner, delta)"
            f" ON CONFLICT ({t.owner}) DO UPDATE SET {t.count} = stored.{t.count} + excluded.{t.count},"
            f" {t.batch} = excluded.{t.batch}, {t.updated} = excluded.{t.updated}"
            f" WHERE stored.{t.batch} < excluded.{t.batch}",
            (*t.values(batch), users, deltas),
        )
