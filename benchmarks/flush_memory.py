"""Flushes all that waits, and prints the users and the peak memory of this process in KiB (Linux only)."""

import re
from pathlib import Path

import django

if __name__ == "__main__":
    django.setup()

    from notifications_counter.counters import unread

    users = unread.flush().users
    # Unlike ru_maxrss this begins anew with each program, and not with the size of the process that started it.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(users, peak[1] if peak else 0)
