"""SQLite: the chunk is sent as JSON."""

from .target import Chunk, Target


def store(target: Target, chunk: Chunk) -> None:
    """Store the counts of a chunk."""
    t = target
    columns = ", ".join(f"json_extract(value, '$[{i}]')" for i in range(len(t.owners) + 1))
    with t.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {t.table} AS stored ({t.columns})"
            f" SELECT {columns}, {t.placeholders} FROM json_each(%s) WHERE true{t.on_conflict}",
            (*t.values(), t.as_json(chunk)),
        )
