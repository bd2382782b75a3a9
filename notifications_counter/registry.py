"""Every declared counter, by name and by source model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import apps

from .exceptions import ConfigurationError

if TYPE_CHECKING:
    from django.db.models import Model

    from .counters import Counter

_counters: dict[str, Counter] = {}
_by_model: dict[type[Model], tuple[Counter, ...]] = {}


def register(counter: Counter) -> None:
    if counter.name in _counters:
        raise ConfigurationError(f"There is a counter named {counter.name!r} already; give this one another name.")
    _counters[counter.name] = counter
    _by_model.clear()


def all_counters() -> list[Counter]:
    """Every counter, in the order of declaration."""
    return list(_counters.values())


def get_counter(name: str) -> Counter:
    """The counter of this name; ConfigurationError names those that exist."""
    try:
        return _counters[name]
    except KeyError:
        raise ConfigurationError(f"No counter is named {name!r}; there are: {', '.join(_counters)}.") from None


def counters_of(model: type[Model]) -> tuple[Counter, ...]:
    """The counters whose source is this model, or a parent of it."""
    try:
        return _by_model[model]
    except KeyError:
        found = tuple(c for c in _counters.values() if issubclass(model, c.source))
        if apps.models_ready:
            _by_model[model] = found
        return found
