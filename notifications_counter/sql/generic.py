"""Other databases: plain ORM, with a few statements for each owner."""

from django.db.models import F, QuerySet
from django.utils import timezone

from .target import Chunk, Target


def apply(target: Target, batch: int, chunk: Chunk) -> None:
    """Add the deltas of a chunk where its batch is not in the row yet: `guard`."""
    field, batch_field = target.counter.field, target.counter.batch_field
    rows: QuerySet = QuerySet(target.model, using=target.connection.alias)
    names = [field.attname for field in target.counter.total_fields]
    missing = []
    for *key, delta in zip(*chunk.columns, chunk.deltas, strict=True):
        owner = dict(zip(names, key, strict=True))
        values = {batch_field: batch, "updated_at": timezone.now()}
        if (row := rows.filter(**owner)).exists():
            row.filter(**{f"{batch_field}__lt": batch}).update(**{field: F(field) + delta}, **values)
        else:
            missing.append(target.model(**owner, **{field: delta}, **values))
    rows.bulk_create(missing)
