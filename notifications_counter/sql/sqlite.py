"""SQLite: the chunk is sent as JSON."""

import json

from .target import Chunk, Target


def apply(target: Target, batch: int, chunk: Chunk) -> None:
    """Add the deltas of a chunk where its batch is not in the row yet: `guard`."""
    t = target
    rows = json.dumps(list(zip(*t.db_columns(chunk), chunk.deltas, strict=True)), ensure_ascii=False)
    columns = ", ".join(f"json_extract(value, '$[{i}]')" for i in range(len(t.owners) + 1))
    with t.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {t.table} ({t.columns})"
            f" SELECT {columns}, {t.placeholders} FROM json_each(%s) WHERE true"
            f" ON CONFLICT ({t.owner}) DO UPDATE SET {t.count} = {t.table}.{t.count} + excluded.{t.count},"
            f" {t.batch} = excluded.{t.batch}, {t.updated} = excluded.{t.updated}"
            f" WHERE {t.table}.{t.batch} < excluded.{t.batch}",
            (*t.values(batch), rows),
        )
