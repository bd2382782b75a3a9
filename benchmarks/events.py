"""python -m benchmarks.events [--quick]: counting the types of events, by their sets and by reading every event."""

import argparse

from .bench import Result, compare, machine, stage, table

TYPES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 events instead of 1,000,000")
    arguments = parser.parse_args()
    with stage():
        rows = [result.row() for result in count_types(100_000 if arguments.quick else 1_000_000)]
        print("", machine(), "", table(rows), sep="\n")


def count_types(size: int) -> list[Result]:
    from notifications_counter import events

    for first in range(0, size, 10_000):
        events.record_events({"type": f"type{n % TYPES}", "timestamp": n} for n in range(first, first + 10_000))
    assert events.count_types() == events.count_types(scan=True)
    calls = 20

    def sets() -> None:
        for _ in range(calls):
            events.count_types()

    def scan() -> None:
        events.count_types(scan=True)

    name = f"count_types() of {size:,} events, by sets ÷ by reading each"
    return [compare(name, "≥ 1,000", sets, scan, rounds=3, units=(calls, 1), faster=True)]


if __name__ == "__main__":
    main()
