"""Counters: start reading here.

A counter knows how many rows of a source model satisfy a condition, for each owner. A read returns what Redis has
cached; else it counts the rows, as it does while the owner is in flight. Stored totals in the database, which a flush
writes, are for lists, rankings and the admin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from asgiref.sync import sync_to_async
from django.db.models import Q, QuerySet

from .conf import ENTRIES, is_integer, options
from .databases.isolation import forbid_transaction
from .declaration import Declaration, declarations
from .declaration.primary_keys import Pk, many
from .exceptions import ConfigurationError
from .internals import Uncached
from .reads import read
from .reports import report
from .sql.counts import break_down
from .upkeep.findings import Result
from .upkeep.flush import Flush
from .upkeep.generations import begin_generation, forbid_other_rows, forbid_replaced
from .upkeep.heal import HEAL_SECONDS, heal
from .upkeep.phases import Phase, phase_without_redis, row_of, seconds_to_wait
from .upkeep.switch import settle
from .upkeep.walk import recount


class Counter(Declaration):
    """An exact count of rows for each owner.

    ``name``         1 to 100 characters; part of the keys in Redis
    ``source``       the counted model, as ``"app.Model"``
    ``owner``        its foreign key to the owner; or several columns, any of which may be a foreign key
    ``condition``    a Q over the row's own columns that says which rows count
    ``sum``          an integer column of the source: the count is its sum over these rows, where NULL is 0
    ``totals``       a subclass of BaseCount whose one-to-one primary key is the owner; for several columns, a model
                     with columns of the same names, as its composite primary key or under a unique constraint
    ``field``        its integer field for the count, a BigIntegerField for a sum
    ``is_used``      False for a built-in counter that the site does not use: it cannot be used, and nothing is counted
    """

    # ------------------------------------------------------------------ reads
    def count(self, owner: object) -> int:
        """Return the number of rows that count for an owner, given as an instance or a primary key."""
        pk = self.pk_of(owner)
        return read(self, [pk])[pk]

    def counts(self, owners: Iterable[object]) -> dict[Pk, int]:
        """Return ``{primary key: count}`` for many owners, in a round trip for every 3,899 if all are cached."""
        return read(self, self.pks_of(list(many(owners))))

    def breakdown(self, owner: object) -> dict[Pk, int]:
        """For owners of several columns, return ``{value of the last column: count}`` for a value of the first column,
        or a sequence of values of all columns but the last. Zero counts are left out. Counts the rows, in one
        statement.
        """
        first = self.first_of_pk(owner)
        return break_down(self, [first])[first]

    def attach(self, objects: Iterable[object], name: str) -> None:
        """Set the count of each of these owners, a list or a queryset, as an attribute of this name. Costs as much as
        ``counts``. ValueError if their class has such an attribute."""
        if isinstance(objects, Iterator):
            raise TypeError("Pass a list or a queryset to attach(): it would use up an iterator.")
        found = list(many(objects))
        for kind in {each.__class__ for each in found}:
            if hasattr(kind, name):
                raise ValueError(f"{kind.__name__} has a {name!r} of its own. Pass another name to attach().")
        pks = self.pks_of(found)
        counts = self.counts(pks)
        for each, pk in zip(found, pks, strict=True):
            setattr(each, name, counts[pk])

    def top(self, number: int, within: object = None) -> list[tuple[Pk, int]]:
        """Return ``[(primary key, count)]`` of the owners with the largest stored totals, as of the last flush, sorted
        by their current counts. Zero counts are left out. For owners of several columns, ``within`` is an argument of
        ``breakdown``, and only owners that it counts are compared.

        Takes a statement, which needs an index on the stored count, and a call of ``counts``.
        """
        if not is_integer(number) or number < 1:
            raise ValueError(f"Pass the number of owners, not {number!r:.200}.")
        names = [field.attname for field in self.total_fields]
        first = () if within is None else self.first_of_pk(within)
        totals: QuerySet = Uncached(self.totals, using=self.db).filter(**dict(zip(names, first, strict=False)))
        largest = totals.exclude(**{self.field: 0}).order_by(f"-{self.field}", *names).values_list(*names)
        counts = self.counts([self.pk_of_row(owner) for owner in largest[:number]])
        return sorted(filter(itemgetter(1), counts.items()), key=itemgetter(1), reverse=True)

    acount = sync_to_async(count)
    acounts = sync_to_async(counts)
    abreakdown = sync_to_async(breakdown)
    aattach = sync_to_async(attach)
    atop = sync_to_async(top)

    # ------------------------------------------------------------ maintenance
    def flush(self, seconds: float = math.inf) -> Result:
        """Store the counts of all owners that have changed since the last flush, in chunks of up to 20,000 owners, for
        about ``seconds``. A new counter is healed first.

        Raises NotInTransaction inside a transaction.
        """
        forbid_transaction(self.db)
        forbid_other_rows(self)
        if not row_of(self).mark:  # nobody has been counted, as in each test whose database starts empty
            self.heal()
            row = row_of(self)
            if phase_without_redis(row, self.fingerprint) == Phase.DEPLOYING:
                report("waiting", self, wait=round(seconds_to_wait(row)))
        return Flush(self, seconds).run()

    def heal(self, seconds: float = HEAL_SECONDS) -> Result:
        """Do what the flusher does before each flush: put in doubt owners whose change Redis has missed; begin with an
        empty cache if Redis is new or has lost data, or if everyone is in doubt, and then compare everyone with the
        rows for about ``seconds``; otherwise compare a page of owners if that is due. If more is to do, the result is
        ``unfinished``.

        Raises NotInTransaction inside a transaction.
        """
        return heal(self, seconds)

    def recount(
        self,
        owners: Iterable[object] | None = None,
        dry_run: bool = False,
        seconds: float = math.inf,
    ) -> Result:
        """Compare the counts of these owners, by default of everyone for about ``seconds``, with the rows. Owners whose
        count is wrong are in doubt from then on: reads count their rows, and the next flush stores their counts. For
        monitoring, that is a warning if no owners are named. A ``dry_run`` only reports. Raises NotInTransaction inside
        a transaction.
        """
        pks = None if owners is None else [self.pk_of(owner) for owner in many(owners)]
        return recount(self, pks, dry_run, seconds)

    def invalidate(self) -> None:
        """Discard what Redis holds. Call this after you have restored the database from a backup.

        The first read of each owner counts rows, and the next heals compare everyone with them. Raises NotInTransaction
        inside a transaction, and ConfigurationError if another release has replaced this process.
        """
        forbid_transaction(self.db)
        settle(self)
        forbid_replaced(self)
        begin_generation(self, "the database was restored from a backup")


def all_counters() -> list[Counter]:
    """Return every counter, in the order of their declarations."""
    return [counter for counter in declarations() if isinstance(counter, Counter)]


def counter_named(name: str) -> Counter:
    """Return the counter of this name. Raises ConfigurationError if there is none."""
    counters = {counter.name: counter for counter in all_counters()}
    try:
        return counters[name]
    except KeyError:
        if name in BUILT_IN:
            BUILT_IN[name].forbid_unused()
        raise ConfigurationError(f"No counter is named {name!r}; the counters are: {', '.join(counters)}.") from None


# ------------------------------------------------------------------- built-in
BUILT_IN: dict[str, Counter] = {}
"""The counters of notifications. COUNTERS names those that the site uses; `unread` always is one of them."""


def counters_of_notifications() -> list[Counter]:
    """Return the built-in counters that the site uses."""
    return [counter for counter in BUILT_IN.values() if counter.is_used]


def _is_used(name: str) -> bool:
    names = options.COUNTERS if ENTRIES["COUNTERS"].valid(options.COUNTERS) else ()  # a system check reports others
    return name == "unread" or name in names


def _built_in(name: str, owner: str | Sequence[str], condition: Q, totals: str, field: str) -> Counter:
    BUILT_IN[name] = Counter(
        name,
        source="notifications_counter.Notification",
        owner=owner,
        condition=condition,
        totals=f"notifications_counter.{totals}",
        field=field,
        is_used=_is_used(name),
    )
    return BUILT_IN[name]


_IS_UNREAD, _IS_UNSEEN = Q(read_at__isnull=True), Q(seen_at__isnull=True, read_at__isnull=True)

unread = _built_in("unread", "user", _IS_UNREAD, "UserNotificationsCount", "unread_count")
unseen = _built_in("unseen", "user", _IS_UNSEEN, "UserNotificationsCount", "unseen_count")
unread_by_kind = _built_in("unread_by_kind", ("user", "kind"), _IS_UNREAD, "UserKindNotificationsCount", "unread_count")
