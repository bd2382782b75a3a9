"""MariaDB and MySQL. Assignments run left to right, so the batch, which they ask for, is assigned last."""

from .target import Chunk, Target


def apply(target: Target, batch: int, chunk: Chunk) -> None:
    """Add the deltas of a chunk where its batch is not in the row yet."""
    t = target
    now = t.now()
    rows = [v for key, delta in zip(t.db_keys(chunk), chunk.deltas, strict=True) for v in (key, delta, batch, now)]
    places = ", ".join(["(%s, %s, %s, %s)"] * len(chunk.keys))
    is_new = f"{t.batch} < VALUES({t.batch})"
    with t.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {t.table} ({t.columns}) VALUES {places}"
            f" ON DUPLICATE KEY UPDATE {t.count} = IF({is_new}, {t.count} + VALUES({t.count}), {t.count}),"
            f" {t.updated} = IF({is_new}, VALUES({t.updated}), {t.updated}),"
            f" {t.batch} = GREATEST({t.batch}, VALUES({t.batch}))",
            rows,
        )
