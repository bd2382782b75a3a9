"""Bulk operations of counted models, brought to the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import nullcontext
from itertools import chain
from typing import Any, cast

from django.db import transaction
from django.db.models import IntegerField, Model, QuerySet, UUIDField
from django.db.models.deletion import Collector
from django.db.models.lookups import Exact
from django.db.models.sql.where import AND
from django.utils import timezone

from .declaration import Declaration, counters_of
from .receivers import others_listen, owner_of, sources_of, tells_owner
from .writes.ledger import Ledger
from .writes.rows import (
    RowStates,
    activity,
    can_return_deleted,
    chunks,
    delete_returning,
    difference,
    is_plain,
    locked,
    locked_by,
)


class _QuietCollector(Collector):
    """A collector that does not see our own receivers: may rows be deleted in one statement but for them?"""

    def _has_signal_listeners(self, model: type[Model]) -> bool:
        return others_listen(model)


class CountedQuerySet(QuerySet):
    """A QuerySet whose bulk operations keep the counters of its model right."""

    def bulk_create(
        self,
        objs: Iterable[Any],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[Any]:
        """As Django's. With conflicts ignored or updated, the owners are recounted; an update of the owner is refused,
        because nobody could tell who owned the row before. Nor does MySQL tell which rows were updated: there they must
        belong to the owners of the new instances. An owner that is an expression is asked for by primary key, and
        refused where the database does not return that."""
        counters = counters_of(self.model)
        objs = list(objs)
        for counter in counters:
            if update_conflicts and {counter.owner, counter.owner_attname} & set(update_fields or ()):
                raise ValueError(
                    f"bulk_create(update_conflicts=True) cannot update {counter.owner!r}: the owners before it would "
                    "be unknown. Create the new rows and give the others to their new owner by update()."
                )
        doubt = ignore_conflicts or update_conflicts
        self._for_write = True
        strangers = [obj for obj in objs if not all(tells_owner(counter, obj) for counter in counters)]
        owners = {c: list(dict.fromkeys(m for o in objs if (m := owner_of(c, o)) is not None)) for c in counters}
        ledger = Ledger.of(self.db)
        create = super().bulk_create

        def created() -> list[Any]:
            rows = create(objs, batch_size, ignore_conflicts, update_conflicts, update_fields, unique_fields)
            for counter in counters:
                deltas: dict[str, int | None] = defaultdict(int)
                for obj in objs:
                    member = owner_of(counter, obj)
                    if member is not None:
                        holds = counter.condition.holds(obj, self.db)
                        known = deltas[member]
                        deltas[member] = None if doubt or holds is None or known is None else known + holds
                ledger.record(counter, deltas)
            if not doubt:
                ledger.happened({(counter, "created"): len(objs) for counter in counters})
            if any(obj.pk is None for obj in strangers):
                raise ValueError("bulk_create() cannot tell whose these rows are: the owner must not be an expression.")
            if asked := objs if update_conflicts else strangers:  # rows may have other owners than instances believe
                for source in sources_of(counters):
                    pks = [obj.pk for obj in asked if obj.pk is not None]
                    for counter, member, _ in chain(*locked(source, self.db, pks).values()):
                        if member is not None:
                            ledger.record(counter, {member: None})
            return rows

        asks = update_conflicts or strangers
        with transaction.atomic(using=self.db, savepoint=False) if asks else nullcontext():
            return ledger.write(owners, created)

    bulk_create.alters_data = True  # type: ignore[attr-defined]

    def update(self, **kwargs: Any) -> int:
        """As Django's. A change of counted columns locks its rows first, and counts the difference. It finds them by
        their primary key, which therefore cannot change in the same statement."""
        counters = [c for c in counters_of(self.model) if c.reads(kwargs)]
        query = self.query
        if not counters or query.is_sliced or query.combinator or query.distinct_fields:
            return super().update(**kwargs)
        if any(kwargs.keys() & {field.name, field.attname} for c in counters for field in c.source._meta.pk_fields):
            raise ValueError(
                "update() cannot change counted columns and the primary key at once: make two of it, or, where one is "
                "part of the other, create the rows anew."
            )
        self._for_write = True
        using = self.db
        ledger = Ledger.of(using)
        with transaction.atomic(using=using, savepoint=False):
            pks, before = self._lock(counters, using)
            changed = 0
            for chunk in chunks(pks, using):
                changed += super(CountedQuerySet, self.order_by().filter(pk__in=chunk)).update(**kwargs)
            for source, rows in before.items():
                after = locked(source, using, list(rows))
                for counter, deltas in difference(rows.values(), after.values()).items():
                    ledger.record(counter, {m: d for m, d in deltas.items() if d})
                ledger.happened(activity(rows, after))
        self._result_cache = None
        return changed

    update.alters_data = True  # type: ignore[attr-defined]

    def delete(self) -> tuple[int, dict[str, int]]:
        """As Django's. Where nothing but the counters listens and nothing cascades, in a few statements."""
        counters = counters_of(self.model)
        query, whole = self.query, cast(Any, self)
        blocked = query.is_sliced or query.combinator or query.distinct_fields or whole._fields is not None
        self._for_write = True
        using = self.db
        ledger = Ledger.of(using)
        # Rows that a deletion under way has announced are counted when they go: not by this statement as well.
        blocked = blocked or any(map(ledger.dooms, sources_of(counters)))
        if not counters or blocked or not _QuietCollector(using=using, origin=whole).can_fast_delete(whole):
            return super().delete()
        deleted = 0
        with transaction.atomic(using=using, savepoint=False):
            if can_return_deleted(using) and is_plain(self, cast(Any, self.model._meta.concrete_model)):
                deleted, changed = delete_returning(self, using)
                for counter, deltas in changed.items():
                    ledger.record(counter, deltas)
                ledger.happened({(counter, "deleted"): deleted for counter in counters})
            else:
                pks, before = self._lock(counters, using)
                for chunk in chunks(pks, using):
                    deleted += QuerySet(self.model, using=using).filter(pk__in=chunk)._raw_delete(using)
                for rows in before.values():
                    for counter, deltas in difference(rows.values()).items():
                        ledger.record(counter, deltas)
                    ledger.happened(activity(rows))
        self._result_cache = None
        return deleted, {self.model._meta.label: deleted} if deleted else {}

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def _lock(
        self, counters: Iterable[Declaration], using: str
    ) -> tuple[list[Any], dict[type[Model], dict[Any, RowStates]]]:
        """Lock what this queryset selects: primary keys, and what their rows count for, by source."""
        first, *others = sources_of(list(counters))
        found = {first: locked_by(self, first, using)}
        pks = list(found[first])
        found.update((source, locked(source, using, pks)) for source in others)
        return pks, found

    def _shift(self, counter: Declaration, delta: int, **values: Any) -> int:
        """Update rows that all change the count by the same delta, as the condition of this very queryset, checked by
        the UPDATE itself, says. Returns the number of rows."""
        owner = self._only_owner(counter) if list(counters_of(self.model)) == [counter] else None
        if owner is None or not is_plain(self, counter.source):
            return CountedQuerySet.update(self, **values)
        self._for_write = True
        ledger = Ledger.of(self.db)
        update = super().update

        def changed() -> int:
            if rows := update(**values):
                ledger.record(counter, {owner: delta * rows})
                ledger.happened({(counter, "read"): rows} if delta < 0 else {})
            return rows

        return ledger.write({counter: [owner]}, changed)

    def _only_owner(self, counter: Declaration) -> str | None:
        """The one owner whose rows this queryset can select, if its conditions name one. A text may equal another,
        as the collation of its column has it."""
        where = self.query.where
        if where.connector != AND or where.negated or not isinstance(counter.key_field, IntegerField | UUIDField):
            return None
        for child in where.children:
            target = getattr(getattr(child, "lhs", None), "target", None)
            if isinstance(child, Exact) and target == counter.source._meta.get_field(counter.owner):
                return None if hasattr(child.rhs, "resolve_expression") else counter.encode(child.rhs)
        return None


class NotificationQuerySet(CountedQuerySet):
    """Notifications."""

    def unread(self) -> NotificationQuerySet:
        """Those that are not read."""
        return self.filter(read_at__isnull=True)

    def read(self) -> NotificationQuerySet:
        """Those that are read."""
        return self.filter(read_at__isnull=False)

    def for_user(self, user: Any) -> NotificationQuerySet:
        """Those of one user, given as an instance or a primary key."""
        return self.filter(user=user)

    def mark_as_read(self) -> int:
        """Mark the unread ones as read. Returns how many really changed."""
        from .counters import unread

        return self.unread()._shift(unread, -1, read_at=timezone.now())

    mark_as_read.alters_data = True  # type: ignore[attr-defined]

    def mark_as_unread(self) -> int:
        """Mark the read ones as unread. Returns how many really changed."""
        from .counters import unread

        return self.read()._shift(unread, 1, read_at=None)

    mark_as_unread.alters_data = True  # type: ignore[attr-defined]
