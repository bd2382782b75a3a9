"""Badges, and the names by which scripts ask for their counts.

A user's own badges of the built-in counters are named after the counters. The name of any other badge is signed for the
user whose page shows it. So templates decide who may see which count, and a script cannot ask for more.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, Signer

from ..counters import Counter, counter_named, counters_of_notifications, unread_by_kind
from ..declaration.primary_keys import CompositePk
from ..exceptions import ConfigurationError
from ..places import Place, at, here
from ..sql.counts import break_down

CACHE = "_notifications_counter_counts"
"""The attribute of a request that caches its counts."""

BadgeCount = int | dict[str, int]
"""A count, or counts by kind."""


class Badge(NamedTuple):
    """A counter at a place, and an owner key. The badge of all kinds of a user has an owner key without the kind."""

    place: Place
    counter: Counter
    owner_key: str

    @property
    def whole(self) -> Badge:
        """The badge of all kinds of the user if this is the badge of a kind, else the badge itself."""
        if self.counter is not unread_by_kind:
            return self
        return self._replace(owner_key=str(CompositePk(json.loads(self.owner_key)[:1])))

    @property
    def kind(self) -> str | None:
        """The kind of this badge, if any."""
        return None if self == self.whole else self.counter.valid_pk(self.owner_key)[-1]


def user_of(request: Any) -> Any:
    """Return the user of a request, or None if nobody is logged in."""
    user = getattr(request, "user", None)
    return user if user is not None and user.is_authenticated else None


def badge_of(counter: Counter, owner: Any) -> Badge:
    """Return the badge of an owner, given as an instance or a key. Raises ValueError for anything else."""
    return Badge(here(counter.source), counter, str(counter.pk_of(owner)))


def badge_of_kinds(user: Any) -> Badge:
    """Return the badge of all kinds of a user."""
    return Badge(here(unread_by_kind.source), unread_by_kind, str(CompositePk(unread_by_kind.first_of_pk(user))))


def count_once(request: Any, badge: Badge) -> Any:
    """Return the count of a badge, read once per request and tenant."""
    counts: dict[Badge, Any] = getattr(request, CACHE, {})
    if badge.whole != badge and badge.whole in counts:
        return counts[badge.whole].get(badge.kind, 0)
    if badge not in counts:
        counts |= counts_of([badge])
        if request is not None:
            setattr(request, CACHE, counts)
    return counts[badge]


def counts_of(badges: Iterable[Badge], *without: type[Exception]) -> dict[Badge, BadgeCount]:
    """Return the counts of badges, wherever they are counted. All badges of a counter are read together, and so are all
    kinds of a user. Leave out those whose reading raises one of these errors."""
    found: dict[Badge, BadgeCount] = {}
    groups: dict[tuple[Place, Counter, bool], list[Badge]] = defaultdict(list)
    for badge in badges:
        has_kinds = badge.counter is unread_by_kind and badge == badge.whole
        groups[badge.place, badge.counter, has_kinds].append(badge)
    for (place, counter, has_kinds), group in groups.items():
        pks: dict[Badge, Any]
        counts: dict[Any, Any]
        with suppress(*without), at(place):
            if has_kinds:
                pks = {badge: counter.first_of_pk(json.loads(badge.owner_key)) for badge in group}
                counts = {user: dict(sorted(n.items())) for user, n in break_down(counter, list(pks.values())).items()}
            else:
                pks = {badge: counter.valid_pk(badge.owner_key) for badge in group}
                counts = counter.counts(pks.values())
            found |= {badge: counts[pk] for badge, pk in pks.items()}
    return found


def count_all(badges: Mapping[str, Badge]) -> dict[str, BadgeCount]:
    """Return the counts of badges by their names."""
    found = counts_of(badges.values())
    return {name: found[badge] for name, badge in badges.items()}


def badges_of(user: Any, names: Iterable[str] = ()) -> dict[str, Badge]:
    """Return the user's badges of the built-in counters, and the named badges that are signed for the user. Leave out
    all others, because a page may outlive a counter, its kind of owner, or the key that signed its badges."""
    found = {
        counter.name: badge_of_kinds(user) if counter is unread_by_kind else badge_of(counter, user)
        for counter in counters_of_notifications()
    }
    for name in names:
        try:
            counter = counter_named(unquote(name.partition("/")[0]))
            owner_key = _signer(user, counter).unsign(name).partition("/")[2]
            counter.valid_pk(owner_key)
        except (BadSignature, ConfigurationError, ValidationError):
            continue
        found[name] = Badge(here(counter.source), counter, owner_key)
    return found


def name_of(badge: Badge, user: Any) -> str:
    """Return the name by which this user's scripts may ask for a badge, or for the counts by kind that include it."""
    if badge.whole in badges_of(user).values():
        return badge.counter.name
    return _signer(user, badge.counter).sign(f"{quote(badge.counter.name, safe='')}/{badge.owner_key}")


def identity_of(user: Any, counter: Counter) -> str:
    """Return a text that identifies a user. Users of different tenants may have the same primary key."""
    place = here(counter.source)
    return ":".join((place.alias, place.schema or "", str(user.pk)))


def _signer(user: Any, counter: Counter) -> Signer:
    return Signer(salt=f"{__name__}:{identity_of(user, counter)}")
