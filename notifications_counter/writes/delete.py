"""DELETE. RETURNING says what was deleted. On databases without it, the rows are locked and counted first."""

from __future__ import annotations

from collections import Counter as Tally
from typing import Any

from ..internals import CURSOR, ROW_COUNT
from .facts import facts_of_where, fate
from .rows import activity_of, add_up, difference, is_plain, locked, rows_of
from .statement import Statement


class Delete(Statement):
    """A DELETE of the rows that a query selects."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Execute it, record what it changes, and return the number of rows."""
        if self.can_return and (self.connection.vendor == "postgresql" or self.compiler.single_alias):
            facts = facts_of_where(self.query.where) if is_plain(self.query) else {}
            fates = {counter: fate(counter, facts, self.using) for counter in self.counters}
            named = all(f.names_owner for f in fates.values())
            return self.ledger.write({c: f.members for c, f in fates.items()} if named else None, self._returning)
        return self.ledger.write(None, self._look_first)

    def _returning(self) -> int:
        ours, as_sql = self.returning, self.compiler.as_sql
        adds_up = self.connection.vendor == "postgresql"  # one row for each owner

        def as_sql_with_ours() -> tuple[str, tuple[Any, ...]]:
            sql, params = as_sql()
            sql = f"{sql} RETURNING {ours.as_columns('c')}"
            if adds_up:
                names = ", ".join(ours.names("c"))
                sql = f"WITH deleted AS ({sql}) SELECT {names}, COUNT(*) FROM deleted GROUP BY {names}"
            return sql, (*params, *ours.params)

        self.compiler.as_sql = as_sql_with_ours
        try:
            cursor = self.execute(self.compiler, CURSOR)
        finally:
            del self.compiler.as_sql
        if cursor is None:  # the WHERE clause matches nothing
            return 0
        with cursor:
            found = cursor.fetchall()
        rows = Tally({row[:-1]: row[-1] for row in found} if adds_up else map(tuple, found))
        self.record_deltas(add_up(zip(ours.states(self.compiler, rows), (-n for n in rows.values()), strict=True)))
        self.record_activity("deleted", rows.total())
        return rows.total()

    def _look_first(self) -> int:
        found = locked(rows_of(self.query, self.using), self.counters)
        if self.known and not self.finds_the_same_again:
            number = 0
            for chunk in self.in_chunks(found):
                part = type(self.query)(self.query.model)
                part.add_filter("pk__in", chunk)
                number += self.execute(part.get_compiler(self.using), ROW_COUNT) or 0
        else:
            number = self.execute(self.compiler, ROW_COUNT) or 0
        if number == len(found):
            self.record_deltas(difference(found.values()))
        else:
            for counter in self.counters:
                self.ledger.doubt(counter)
        self.ledger.record_activity(activity_of(found))
        return number
