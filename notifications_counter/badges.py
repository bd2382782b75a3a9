"""What a badge shows: a counter's count for an owner. A script asks for the count again by the name of the badge.

The badges of built-in counters, for the user who asks, are named after the counters. The name of any other badge is
signed for the user whose page shows it. So templates decide who may see which count, and a script cannot ask for more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from django.core.signing import BadSignature, Signer
from django.db import connections

from .counters import Counter, counters_of_notifications, get_counter
from .databases import schema_of
from .exceptions import ConfigurationError

KEPT = "_notifications_counter_counts"


class Badge(NamedTuple):
    """A counter, and the member that stands for the owner."""

    counter: Counter
    member: str


def user_of(request: Any) -> Any:
    """Return the user of a request, None if nobody is logged in."""
    user = getattr(request, "user", None)
    return user if user is not None and user.is_authenticated else None


def badge_of(counter: Counter, owner: Any) -> Badge:
    """Return the badge of an owner, given as an instance or a key. Raises ValueError for anything else."""
    return Badge(counter, str(counter.key(owner)))


def count_once(request: Any, badge: Badge) -> int:
    """Return the count, read once per request."""
    counts: dict[Badge, int] = getattr(request, KEPT, {})
    if badge not in counts:
        counts[badge] = badge.counter.count(badge.counter.decode(badge.member))
        if request is not None:
            setattr(request, KEPT, counts)
    return counts[badge]


def count_all(badges: Mapping[str, Badge]) -> dict[str, int]:
    """Return the counts, by name: one read for all badges of a counter."""
    keys: dict[Counter, dict[str, Any]] = defaultdict(dict)
    for name, (counter, member) in badges.items():
        keys[counter][name] = counter.decode(member)
    found = {counter: counter.counts(theirs.values()) for counter, theirs in keys.items()}
    return {name: found[badge.counter][keys[badge.counter][name]] for name, badge in badges.items()}


def badges_of(user: Any, names: Iterable[str] = ()) -> dict[str, Badge]:
    """Return the badges of the built-in counters, and those of these names that are signed for the user. Others are
    left out: a page may outlive a counter, or the key that has signed its badges."""
    found = {counter.name: badge_of(counter, user) for counter in counters_of_notifications()}
    for name in names:
        try:
            counter = get_counter(unquote(name.partition("/")[0]))
            member = _signer(user, counter).unsign(name).partition("/")[2]
        except (BadSignature, ConfigurationError):
            continue
        found[name] = Badge(counter, member)
    return found


def name_of(badge: Badge, user: Any) -> str:
    """Return the name by which a script of this user may ask for a badge."""
    if badge in badges_of(user).values():
        return badge.counter.name
    return _signer(user, badge.counter).sign(f"{quote(badge.counter.name, safe='')}/{badge.member}")


def _signer(user: Any, counter: Counter) -> Signer:
    """Users of different tenants may have the same primary key."""
    using = counter.db
    return Signer(salt=":".join((__name__, using, schema_of(connections[using]) or "", str(user.pk))))
