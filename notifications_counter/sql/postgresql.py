"""PostgreSQL: the chunk is sent as arrays. Arrays of integers are sent as text, which drivers bind faster."""

from typing import Any

from .owners import arrays
from .target import Chunk, Target


def apply(target: Target, batch: int, chunk: Chunk) -> None:
    """Add the deltas of a chunk to each row that does not have its batch yet: `guard`."""
    t = target
    columns = [_as_array(column) for column in t.db_columns(chunk)]
    names = ", ".join(f"owner{i}" for i in range(len(t.owners)))
    with t.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {t.table} AS stored ({t.columns})"
            f" SELECT {names}, delta, {t.placeholders}"
            f" FROM unnest({arrays(t.counter, t.connection)}, %s::bigint[]) AS batch ({names}, delta){t.on_conflict}",
            (*t.values(batch), *columns),
        )


def _as_array(column: list[Any]) -> Any:
    return f"{{{','.join(map(str, column))}}}" if isinstance(column[0], int) else column
