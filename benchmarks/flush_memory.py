"""Flushes everything, and prints the number of users and the peak memory of this process in KiB."""

import django

from .bench import peak_memory

if __name__ == "__main__":
    django.setup()

    from notifications_counter.counters import unread

    print(unread.flush().owners, peak_memory())
