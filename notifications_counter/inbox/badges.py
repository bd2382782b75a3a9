"""Badges, and the names by which scripts ask for their counts.

A user's own badges of the built-in counters are named after the counters. The name of any other badge is signed for the
user whose page shows it. So templates decide who may see which count, and a script cannot ask for more.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, Signer

from ..counters import Counter, counter_named, counters_of_notifications, unread_by_kind
from ..declaration.primary_keys import CompositePk
from ..exceptions import ConfigurationError
from ..places import Place, here
from ..sql.counts import break_down

CACHE = "_notifications_counter_counts"
"""The attribute of a request that caches its counts."""

BadgeCount = int | dict[str, int]
"""A count, or counts by kind."""


class Badge(NamedTuple):
    """A counter and an owner key. The badge of all kinds of a user has an owner key without the kind."""

    counter: Counter
    owner_key: str

    @property
    def whole(self) -> Badge:
        """The badge of all kinds of the user if this is the badge of a kind, else the badge itself."""
        if self.counter is not unread_by_kind:
            return self
        return Badge(self.counter, str(CompositePk(json.loads(self.owner_key)[:1])))

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
    return Badge(counter, str(counter.pk_of(owner)))


def badge_of_kinds(user: Any) -> Badge:
    """Return the badge of all kinds of a user."""
    return Badge(unread_by_kind, str(CompositePk(unread_by_kind.first_of_pk(user))))


def count_once(request: Any, badge: Badge) -> Any:
    """Return the count of a badge, read once per request and tenant."""
    counts: dict[tuple[Place, Badge], Any] = getattr(request, CACHE, {})
    local, whole = ((here(badge.counter.source), each) for each in (badge, badge.whole))
    if whole in counts and whole != local:
        return counts[whole].get(badge.kind, 0)
    if local not in counts:
        counts[local] = counts_of([badge])[badge]
        if request is not None:
            setattr(request, CACHE, counts)
    return counts[local]


def counts_of(badges: Iterable[Badge]) -> dict[Badge, BadgeCount]:
    """Return the counts of badges. All badges of a counter are read together, and so are all kinds of a user."""
    found: dict[Badge, BadgeCount] = {}
    keys: dict[Counter, dict[Badge, Any]] = defaultdict(dict)
    users: dict[Badge, tuple[Any, ...]] = {}
    for badge in badges:
        counter, owner_key = badge
        if counter is unread_by_kind and badge == badge.whole:
            (user,) = json.loads(owner_key)
            users[badge] = counter.first_of_pk(user)
        else:
            keys[counter][badge] = counter.valid_pk(owner_key)
    for counter, by_badge in keys.items():
        owners = by_badge.values()
        counts = counter.counts(owners) if len(owners) > 1 else {key: counter.count(key) for key in owners}
        found |= {badge: counts[key] for badge, key in by_badge.items()}
    if users:
        kinds = break_down(unread_by_kind, list(users.values()))
        found |= {badge: dict(sorted(kinds[user].items())) for badge, user in users.items()}
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
        found[name] = Badge(counter, owner_key)
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
