"""Empties the tables after a test that commits. Django's command of this name takes most of a short test's time."""

from itertools import compress
from typing import Any

from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management.commands import flush
from django.db import connections

from notifications_counter.databases.identity import look_up_after_migrate

# Migrations fill them, and no test changes them: so post_migrate need not create them again.
KEPT = {ContentType._meta.db_table, Permission._meta.db_table}


class Command(flush.Command):
    def handle(self, *, database: str, **options: Any) -> None:
        """DELETE from what has rows. A TRUNCATE costs more than the few rows of a test, above all on PostgreSQL."""
        connection = connections[database]
        tables = {*connection.introspection.django_table_names(only_existing=True, include_views=False)} - KEPT
        names = [connection.ops.quote_name(table) for table in tables]
        with connection.constraint_checks_disabled(), connection.cursor() as cursor:
            cursor.execute("SELECT " + ", ".join(f"EXISTS (SELECT 1 FROM {name})" for name in names))
            used = compress(names, cursor.fetchone())
            connection.ops.execute_sql_flush([f"DELETE FROM {name}" for name in used])
        if not options.get("inhibit_post_migrate"):
            look_up_after_migrate(database)  # as after Django's own command, the database is another one
