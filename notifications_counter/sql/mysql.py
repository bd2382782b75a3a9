"""MariaDB and MySQL: the chunk is sent as JSON. Assignments run from left to right, and depend on the batch, which is
therefore assigned last."""

from django.db.models import IntegerField

from .target import Chunk, Target


def apply(target: Target, batch: int, chunk: Chunk) -> None:
    """Add the deltas of a chunk to each row that does not have its batch yet: `guard`."""
    t = target
    # BIGINT is faster. By default, a text has the character set of the database.
    kinds = ["BIGINT" if isinstance(f, IntegerField) else "TEXT CHARACTER SET utf8mb4" for f in t.counter.key_fields]
    names = ", ".join(f"owner{i}" for i in range(len(kinds)))
    columns = ", ".join(f"owner{i} {kind} PATH '$[{i}]'" for i, kind in enumerate(kinds))
    stored = f"{t.table}.{t.count}"  # a column of the chunk may have the same name
    is_new = f"{t.batch} < VALUES({t.batch})"
    # A sum that the column cannot hold is a DataError. Without the cast, it would be an IntegrityError.
    added = f"CAST({stored} AS DECIMAL(20)) + VALUES({t.count})"
    with t.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {t.table} ({t.columns}) SELECT {names}, delta, {t.placeholders}"
            f" FROM JSON_TABLE(%s, '$[*]' COLUMNS ({columns}, delta BIGINT PATH '$[{len(kinds)}]')) AS batch"
            f" ON DUPLICATE KEY UPDATE {t.count} = IF({is_new}, {added}, {stored}),"
            f" {t.updated} = IF({is_new}, VALUES({t.updated}), {t.updated}),"
            f" {t.batch} = GREATEST({t.batch}, VALUES({t.batch}))",
            (*t.values(batch), t.as_json(chunk)),
        )
