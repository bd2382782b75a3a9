"""For sites that come from django-notifications-hq: its ``notify``, and an import of its notifications.

from notifications_counter.contrib.notifications_hq import notify

notify.send(request.user, recipient=followers, verb="liked", target=photo)
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import connections, models, router, transaction
from django.db.models import Model, QuerySet
from django.dispatch import Signal
from django.urls import NoReverseMatch
from django.utils import timezone
from django.utils.translation import gettext

from ..buffer.commands import chunked
from ..databases.transactions import require_autocommit
from ..declaration.primary_keys import primary_key
from ..exceptions import ConfigurationError
from ..internals import Apps
from ..maintenance.places import OUTAGES
from ..models import ImportProgress, Notification

logger = logging.getLogger("notifications_counter")

BATCH = 1000
"""Notifications in one transaction."""

GAPS = 10_000
"""The most missing keys below the last row that are remembered."""

ROLES = ("actor", "action_object", "target")
"""The objects that a notification is about."""

notify = Signal()
"""``notify.send(actor, recipient=…, verb=…, …)`` creates notifications, with the arguments of django-notifications-hq.
Returns ``[(function, [notifications])]``, as a signal does."""


@dataclass
class ImportResult:
    """How many notifications were ``imported``, left out because users had ``deleted`` them, or ``failed`` because they
    could not be imported."""

    imported: int = 0
    deleted: int = 0
    failed: int = 0


def create_notifications(
    sender: Model,
    recipient: Any,
    verb: Any,
    action_object: Model | None = None,
    target: Model | None = None,
    level: str = "info",
    description: str | None = None,
    public: bool = True,
    timestamp: Any = None,
    **kwargs: Any,
) -> list[Notification]:
    """Create a notification for each recipient: a user, a group, or a list or queryset of users. Other arguments go to
    ``data``."""
    kwargs.pop("signal", None)
    objects = dict(zip(ROLES, (sender, action_object, target), strict=True))
    concrete = {role: kwargs.pop(f"{role}_for_concrete_model", True) for role in ROLES}
    references = {
        role: _reference(ContentType.objects.get_for_model(obj, for_concrete_model=concrete[role]), obj.pk)
        for role, obj in objects.items()
        if obj is not None
    }
    data = {**kwargs, "level": level, "public": bool(public), **references}
    return Notification.objects.bulk_create(
        Notification(
            user=user,
            created_at=timestamp or timezone.now(),
            data=data,
            **_fields(str(verb), description, objects),
        )
        for user in _users(recipient)
    )


notify.connect(create_notifications, dispatch_uid=f"{__name__}.notify")


def _users(recipient: Any) -> Iterable[Any]:
    # A group. A user has a user_set as well if the model has a foreign key to itself.
    if hasattr(recipient, "user_set") and not isinstance(recipient, get_user_model()):
        return recipient.user_set.all()
    return recipient if isinstance(recipient, QuerySet | list) else [recipient]


def _reference(kind: ContentType, pk: Any) -> dict[str, str]:
    return {"type": f"{kind.app_label}.{kind.model}", "id": str(pk)}


def _fields(verb: str, description: str | None, objects: dict[str, Any]) -> dict[str, str]:
    """Return the fields that a page shows. The title is the sentence of django-notifications-hq, without the time."""
    words = {role: str(obj) for role, obj in objects.items() if obj is not None} | {"verb": verb}
    if {"action_object", "target"} <= words.keys():
        title = gettext("%(actor)s %(verb)s %(action_object)s on %(target)s") % {"actor": "", **words}
    else:
        title = " ".join(words[part] for part in ("actor", "verb", "action_object", "target") if part in words)
    try:
        url: str = getattr(objects.get("target"), "get_absolute_url", str)() or ""
    except NoReverseMatch:
        url = ""
    return {"kind": verb[:64], "title": title.strip()[:255], "body": description or "", "url": url[:2000]}


# -------------------------------------------------------------------------------------------------------------- import
def import_notifications(
    table: str = "notifications_notification",
    using: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    stopped: Callable[[], bool] = lambda: False,
) -> ImportResult:
    """Copy the notifications of django-notifications-hq, oldest first, except for those that users have deleted.

    Each batch is a transaction, which also stores how far the import has come. So another call continues after the last
    batch that was committed. It also looks for rows that were missing below it: databases assign keys before a
    transaction is committed, so the next row may be there first. Rows that cannot be imported are left out, logged
    with the reason, and tried again by the next call: the newest GAPS of them. ``progress`` is called with the number
    of rows done and of all rows, and ``stopped`` after each batch. Raises ConfigurationError if there is no such table,
    and NotInTransaction if autocommit is off, because nothing would be committed.
    """
    using = using or router.db_for_write(Notification)
    require_autocommit(connections[using])
    if table not in connections[using].introspection.table_names():
        raise ConfigurationError(
            f"The database {using!r} has no table {table!r}. Import from the database and the table in which "
            "django-notifications-hq keeps its notifications."
        )
    source = _source(table)._base_manager.using(using).order_by("pk")
    notes = ImportProgress.objects.using(using)
    note, _ = notes.get_or_create(table=table)
    result, total, done = ImportResult(), source.filter(pk__gt=note.position).count(), 0
    while not (done and stopped()):
        with transaction.atomic(using):
            note = notes.select_for_update().get(pk=note.pk)
            if not (page := _page(source, note.position, () if done else note.missing)):
                break
            failed: dict[int, str] = {}
            copied = sum(_copy(source, some, using, failed) for some in chunked(page, BATCH))
            last = max(note.position, page[-1])
            gaps = {*note.missing, *range(max(note.position + 1, last - GAPS), last)}
            note.missing = sorted(gaps.difference(page) | failed.keys())[-GAPS:]
            note.position = last
            note.save(using=using)
        for key, reason in failed.items():
            about = {"event": "import_failed", "table": table, "key": key, "reason": reason}
            logger.warning("Row %s of %s could not be imported: %s", key, table, reason, extra=about)
        result.imported += copied
        result.deleted += len(page) - copied - len(failed)
        result.failed += len(failed)
        done += len(page)
        progress(done, max(done, total))
    return result


def _page(source: QuerySet, position: int, missing: Sequence[int]) -> list[int]:
    """Return the keys of rows that were missing, and of the next rows."""
    keys = source.values_list("pk", flat=True)
    late = [key for some in chunked(missing, BATCH) for key in keys.filter(pk__in=some)]
    return [*late, *keys.filter(pk__gt=position)[:BATCH]]


def _copy(source: QuerySet, keys: Sequence[int], using: str, failed: dict[int, str]) -> int:
    """Copy rows that are not deleted, and return how many. A row for which this raises an error, as for invalid JSON,
    or for an actor whose ``__str__`` fails, goes to ``failed``, with the reason."""
    try:
        with transaction.atomic(using):
            rows = [row for row in source.filter(pk__in=keys) if not row.deleted]
            return len(Notification.objects.using(using).bulk_create(_converted(rows, using)))
    except Exception as error:
        # SQLite raises an OperationalError for a text that is not UTF-8. Other outages are not about a row.
        if isinstance(error, OUTAGES) and "Could not decode" not in str(error):
            raise
        if len(keys) == 1:
            failed[keys[0]] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return 0
    half = len(keys) // 2
    return sum(_copy(source, some, using, failed) for some in (keys[:half], keys[half:]))


@cache
def _source(table: str) -> Any:
    """Return a model of the table, in a registry of its own, because its app may be gone."""
    text, flag = models.TextField, models.BooleanField
    columns = {
        **{name: text() for name in ("recipient_id", "verb", "description", "level", "data")},
        **{name: flag() for name in ("unread", "public", "deleted", "emailed")},
        **{f"{role}_content_type_id": models.IntegerField() for role in ROLES},
        **{f"{role}_object_id": text() for role in ROLES},
        "timestamp": models.DateTimeField(),
    }
    meta = type("Meta", (), {"apps": Apps(), "app_label": "notifications_hq", "db_table": table, "managed": False})
    return type("Source", (Model,), {"__module__": __name__, "Meta": meta, **columns})


def _converted(rows: list[Any], using: str) -> Iterator[Notification]:
    user_key = Notification._meta.get_field("user").target_field
    kinds = ContentType.objects.db_manager(_home(ContentType, using))
    objects = _objects(rows, kinds, using)
    users: QuerySet[Any] = QuerySet(get_user_model(), using=_home(get_user_model(), using))
    recipients = {user_key.to_python(row.recipient_id) for row in rows}
    known = set(users.filter(**{f"{user_key.name}__in": recipients}).values_list(user_key.name, flat=True))
    if recipients - known:  # databases say so at the end of a transaction only
        raise LookupError("its recipient does not exist")
    for row in rows:
        references = {role: reference for role in ROLES if (reference := _reference_of(row, role))}
        data = json.loads(row.data, parse_constant=str) if row.data else {}  # NaN is no JSON for databases
        data = data if isinstance(data, dict) else {"data": data}
        found = {role: objects.get(reference) for role, reference in references.items()}
        read_at = None if row.unread else row.timestamp
        yield Notification(
            user_id=user_key.to_python(row.recipient_id),
            created_at=row.timestamp,
            seen_at=read_at,
            read_at=read_at,
            data={
                **data,
                "level": row.level,
                "public": row.public,
                "emailed": row.emailed,
                **{role: _reference(kinds.get_for_id(kind), pk) for role, (kind, pk) in references.items()},
            },
            **_fields(row.verb, row.description, found),
        )


def _reference_of(row: Any, role: str) -> tuple[int, str] | None:
    """Return the id of the content type, and the primary key as text."""
    kind = getattr(row, f"{role}_content_type_id")
    return None if kind is None else (kind, getattr(row, f"{role}_object_id"))


def _home(model: type[Model], using: str) -> str:
    """Return the database that holds a model's rows: the one that is imported from, unless the router says that the
    model is elsewhere. It may be a tenant's, and another one has other rows with the same keys."""
    return using if router.allow_migrate_model(using, model) else router.db_for_read(model)


def _objects(rows: list[Any], kinds: Any, using: str) -> dict[tuple[int, str], Model]:
    """Return the objects that the rows are about, if they still exist, with a query for each model."""
    keys: dict[Any, dict[Any, str]] = defaultdict(dict)
    for kind, pk in {reference for row in rows for role in ROLES if (reference := _reference_of(row, role))}:
        model = kinds.get_for_id(kind).model_class()
        if model:
            with suppress(ValueError):
                keys[kind, model][primary_key(model._meta.pk, pk)] = pk
    return {
        (kind, pk_texts[obj.pk]): obj
        for (kind, model), pk_texts in keys.items()
        for obj in model._base_manager.using(_home(model, using)).filter(pk__in=pk_texts)
    }
