"""The owner keys that an argument of ``recount`` stands for."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from ..declaration import Declaration
from ..declaration.primary_keys import CompositeKey, group_of
from ..reader import Reader


def owner_keys_of(counter: Declaration, owner: Any) -> list[str]:
    """Return the owner key that stands for an owner, as a list. Given all columns of owners but the last, return the
    owner keys of all such owners with rows that count, a stored total, or something waiting in Redis."""
    if not counter.is_first(owner):
        return [str(counter.key(owner))]
    first = counter.first_of_key(owner)
    group = group_of(first)
    names = [field.attname for field in counter.total_fields]
    totals: QuerySet[Any] = QuerySet(counter.totals, using=counter.db)
    stored = totals.filter(**dict(zip(names, first, strict=False))).values_list(*names)
    owner_keys = {str(CompositeKey((*first, last))) for last in Reader(counter).count_groups([first])[first]}
    owner_keys |= {str(counter.key_of(owner)) for owner in stored}
    for page in counter.buffer_of(group).upkeep.waiting():
        owner_keys |= {owner_key for owner_key in page if owner_key.startswith(group)}
    return sorted(owner_keys)
