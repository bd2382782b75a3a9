"""PostgreSQL: arrays, which for integer keys are bound as one text each."""

from typing import Any

from .owners import arrays
from .target import Chunk, Target


def apply(target: Target, batch: int, chunk: Chunk) -> None:
    """Add the deltas of a chunk where its batch is not in the row yet."""
    t = target
    columns: list[Any] = [*t.db_columns(chunk), chunk.deltas]
    if chunk.joined:
        columns = [f"{{{text}}}" for text in chunk.joined]
    names = ", ".join(f"owner{i}" for i in range(len(t.owners)))
    with t.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {t.table} AS stored ({t.columns})"
            f" SELECT {names}, delta, {t.placeholders}"
            f" FROM unnest({arrays(t.counter, t.connection)}, %s::bigint[]) AS batch ({names}, delta)"
            f" ON CONFLICT ({t.owner}) DO UPDATE SET {t.count} = stored.{t.count} + excluded.{t.count},"
            f" {t.batch} = excluded.{t.batch}, {t.updated} = excluded.{t.updated}"
            f" WHERE stored.{t.batch} < excluded.{t.batch}",
            (*t.values(batch), *columns),
        )
