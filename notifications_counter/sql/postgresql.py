"""PostgreSQL: the chunk is sent as arrays. Arrays of integers are sent as text, which drivers bind faster."""

from ..internals import Param
from .owners import arrays
from .target import Chunk, Target


def store(target: Target, chunk: Chunk) -> None:
    """Store the counts of a chunk."""
    t = target
    columns = [_as_array(column) for column in t.db_columns(chunk)]
    names = ", ".join(f"owner{i}" for i in range(len(t.owners)))
    with t.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {t.table} AS stored ({t.columns}) SELECT {names}, total, {t.placeholders}"
            f" FROM unnest({arrays(t.counter, t.connection)}, %s::bigint[]) AS chunk ({names}, total){t.on_conflict}",
            (*t.values(), *columns),
        )


def _as_array(column: list[Param]) -> Param:
    return f"{{{','.join(map(str, column))}}}" if isinstance(column[0], int) else column
