"""Which statements may end a transaction, as far as their SQL says."""

from __future__ import annotations

import re

HARMLESS_BEGINNINGS = (
    "SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "SHOW", "SAVEPOINT", "RELEASE",
    "SET SEARCH_PATH", "SET CONSTRAINTS", "PRAGMA FOREIGN_KEY_CHECK",  # each TestCase ends with one of the last two
)  # fmt: skip
"""How statements begin that neither commit nor roll back, unless they fail. ``SET autocommit = 1`` commits."""

HARMLESS_ON_POSTGRESQL = (*HARMLESS_BEGINNINGS, "CALL", "LOCK", "NOTIFY", "SET LOCAL")
"""There, procedures of a transaction cannot end it. On MySQL, LOCK commits, and ``SET LOCAL autocommit`` may."""

QUOTED = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|--\s[^\n]*|/\*[^*]*\*/""")
"""Literals, names and comments."""

UNCLEAR = re.compile(r"[\\$#]|--\S|/\*M?!|\r(?!\n)")
"""What some databases read as escapes, quotes, comments, ends of comments or SQL, and others do not."""


def endings(sql: object, vendor: str) -> list[str]:
    """Return how those statements of a text begin that may end the transaction."""
    if isinstance(sql, str) and ";" not in sql and sql.startswith(HARMLESS_BEGINNINGS):  # only faster
        return []
    harmless = HARMLESS_ON_POSTGRESQL if vendor == "postgresql" else HARMLESS_BEGINNINGS
    return [begins for begins in beginnings(sql) if not begins.startswith(harmless)]


def beginnings(sql: object) -> list[str]:
    """Return how each statement of a text begins, in capitals; a "?" if only the database can tell."""
    if not isinstance(sql, str):  # psycopg also takes bytes and composed SQL
        return ["?"]
    text = sql.strip("( \t\r\n;")
    if ";" not in text and not text.startswith(("--", "/*")):
        return [text[:30].upper()]
    bare = QUOTED.sub(" ", text)
    if UNCLEAR.search(text) or "/*" in bare:  # those of PostgreSQL contain others
        return ["?"]
    return [begins for part in bare.split(";") if (begins := part.strip("( \t\r\n").upper())]
