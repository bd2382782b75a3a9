"""Writers that are to be killed: ``python -m tests.faults.writer``, in ``child_environment``.

For each line on stdin, the name of a write and its owners, a fork connects to the servers and says its process id. It
writes after another line. Then the process says how the fork has ended.
"""

import json
import os
import sys
from typing import Any

import django
from django.utils import timezone


def create(user: Any) -> None:
    from notifications_counter.models import Notification

    Notification.objects.create(user_id=user, title="x")


def create_together(*users: Any) -> None:
    from django.db import transaction

    with transaction.atomic():
        for user in users:
            create(user)


def update(*users: Any) -> None:
    from notifications_counter.models import Notification

    Notification.objects.filter(user__in=users, read_at=None).update(read_at=timezone.now())


def upsert(old: Any, new: Any, *_: Any) -> None:
    """Nothing says whose counts this changes."""
    from django.db import connection

    from notifications_counter.models import Notification

    row = Notification.objects.filter(user=old, read_at=None)[0]
    row.user_id = new
    named = {} if connection.vendor == "mysql" else {"unique_fields": ["pk"]}
    Notification.objects.bulk_create([row], update_conflicts=True, update_fields=["user"], **named)


def create_issue(project: Any) -> None:
    from tests.tasks.models import Issue

    Issue.objects.create(project_id=project, urgent=True)


def move_votes(old: Any, new: Any) -> None:
    from tests.composite_owners.models import Vote

    (shop, item, stars), (*_, better) = old, new
    Vote.objects.filter(shop=shop, item=item, stars=stars).update(stars=better)


def main() -> None:
    django.setup()
    from django.db import connection, connections

    from notifications_counter.buffer.client import client_of, read_all_owed

    user = json.loads(sys.argv[1])
    create(user)
    upsert(user, user)  # now it knows that Redis knows the scripts
    read_all_owed()
    client_of("default").redis.connection_pool.disconnect()
    connections.close_all()
    print("ready", flush=True)
    while line := sys.stdin.readline():
        if not (pid := os.fork()):
            status = 1
            try:
                name, owners = json.loads(line)
                connection.ensure_connection()
                client_of("default").call("EXISTS", "x")
                print(os.getpid(), flush=True)
                sys.stdin.readline()
                globals()[name](*owners)
                read_all_owed()
                status = 0
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
