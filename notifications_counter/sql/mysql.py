"""MariaDB and MySQL: the chunk is sent as JSON. Assignments run from left to right."""

from django.db.models import IntegerField

from .target import Chunk, Target


def store(target: Target, chunk: Chunk) -> None:
    """Store the counts of a chunk."""
    t = target
    # BIGINT is faster. By default, a text has the character set of the database.
    kinds = ["BIGINT" if isinstance(f, IntegerField) else "TEXT CHARACTER SET utf8mb4" for f in t.counter.key_fields]
    names = ", ".join(f"owner{i}" for i in range(len(kinds)))
    columns = ", ".join(f"owner{i} {kind} PATH '$[{i}]'" for i, kind in enumerate(kinds))
    stored = f"{t.table}.{t.count}"  # a column of the chunk may have the same name
    with t.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {t.table} ({t.columns}) SELECT {names}, total, {t.placeholders}"
            f" FROM JSON_TABLE(%s, '$[*]' COLUMNS ({columns}, total BIGINT PATH '$[{len(kinds)}]')) AS chunk"
            f" ON DUPLICATE KEY UPDATE"
            f" {t.updated} = IF({stored} <> VALUES({t.count}), VALUES({t.updated}), {t.updated}),"
            f" {t.count} = VALUES({t.count})",
            (*t.values(), t.as_json(chunk)),
        )
