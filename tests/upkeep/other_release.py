"""A process of another release, in which only notifications of the kind "task" count: ``python -m
tests.upkeep.other_release``, in ``child_environment``. It evaluates each line that it reads, and prints the result."""

import sys

import django
from django.db.models import Q


def main() -> None:
    django.setup()
    from notifications_counter.counters import unread
    from notifications_counter.models import Notification

    unread.q = Q(read_at=None, kind="task")
    names = {"unread": unread, "create": Notification.objects.create}
    print("ready", flush=True)
    for line in sys.stdin:
        print(repr(eval(line, names)), flush=True)


if __name__ == "__main__":
    main()
