"""Splits work into parts of a limited size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def chunked(items: Sequence[T], most: int) -> Sequence[Sequence[T]]:
    """Return items in chunks, each with at most ``most``."""
    if 0 < len(items) <= most:
        return [items]
    return [items[i : i + most] for i in range(0, len(items), most)]


def in_groups(items: Sequence[T], sizes: Sequence[int], most: int) -> list[Sequence[T]]:
    """Return items in groups, one for each command, whose sizes add up to at most ``most``. A larger item is alone."""
    if sum(sizes) <= most:
        return [items] if items else []
    groups, first, total = [], 0, 0
    for i, size in enumerate(sizes):
        total += size
        if total > most and i > first:
            groups.append(items[first:i])
            first, total = i, size
    return [*groups, items[first:]]
