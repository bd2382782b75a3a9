"""Checks of what happens to counted models behind their own ``save()`` and ``delete()``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.core.checks import Error
from django.core.exceptions import FieldDoesNotExist, FieldError
from django.db.models import CASCADE, DO_NOTHING, PROTECT, RESTRICT, ForeignKey, Model

from ..counters import Counter, all_counters
from ..declaration import counters_of
from ..models import CountedModel
from ..querysets import CountedQuerySet
from .registration import TAG, Messages, check, id_


@check(TAG)
def check_counted_models() -> Messages:
    """Deletions elsewhere and bulk operations are seen."""
    for counter in all_counters():
        with suppress(LookupError, FieldDoesNotExist, FieldError):  # check_counters reports them
            owner: Any = counter.source._meta.get_field(counter.owner)
            yield from _check_on_delete(counter, counter.condition.fields | {owner})
    for model in apps.get_models():
        if issubclass(model, CountedModel) and counters_of(model):
            yield from _check_managers(model)


def _check_on_delete(counter: Counter, fields: Iterable[Any]) -> Messages:
    """Django sets foreign keys through the queryset of a counted model, but not for SET() with a callable."""
    counted = issubclass(counter.source, CountedModel)
    for field in fields:
        if isinstance(field, ForeignKey) and issubclass(counter.source, field.model):
            on_delete = field.remote_field.on_delete
            seen = counted and getattr(on_delete, "lazy_sub_objs", False)
            if on_delete not in (CASCADE, PROTECT, RESTRICT, DO_NOTHING) and not seen:
                yield Error(
                    f"Counter {counter.name!r} cannot see when a deletion changes {field}.",
                    hint="Set its on_delete to CASCADE, PROTECT or RESTRICT" + (", or SET_NULL." if counted else "."),
                    obj=field,
                    id=id_("E014"),
                )


def _check_managers(model: type[Model]) -> Messages:
    for name, manager in (("default", model._default_manager), ("base", model._base_manager)):
        if not isinstance(manager.get_queryset(), CountedQuerySet):
            yield Error(
                f"The {name} manager of {model._meta.label} does not count bulk operations.",
                hint="Create it from CountedQuerySet or a subclass, for example with "
                "`objects = CountedQuerySet.as_manager()`, and inherit Meta from CountedModel.Meta.",
                obj=model,
                id=id_("E015"),
            )
