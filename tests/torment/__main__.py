"""python -m tests.torment [--seconds N] [--seed S] [--database KIND] [--round NAME]: rounds of torment until then.

Without a database it starts PostgreSQL, then MariaDB, each for half the time.
"""

import argparse
import logging
import os
import random
import sys
import time
from contextlib import ExitStack

import django

from demo_project import servers


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.torment", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--database", choices=["postgresql", "mariadb"])
    parser.add_argument("--round", action="append", dest="rounds", default=[])
    chosen = parser.parse_args(arguments)
    print(f"seed {chosen.seed}", flush=True)
    with ExitStack() as stack:
        if chosen.database:
            start = {"postgresql": servers.postgresql, "mariadb": servers.mariadb}[chosen.database]
            os.environ["TEST_DATABASE"] = chosen.database
            os.environ["TEST_DATABASE_PORT"] = str(stack.enter_context(start()).port)
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        django.setup()
        from django.db import connection

        if chosen.database:
            connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        return torment(chosen.seconds, chosen.seed, chosen.rounds)


def torment(seconds: float, seed: str, names: list[str]) -> int:
    from . import truth
    from .rounds import ROUNDS, Round, Survived, Wrong, make_users

    logging.getLogger("notifications_counter").addHandler(logging.NullHandler())
    logging.getLogger("notifications_counter").propagate = False
    survived, started = Survived(), time.monotonic()
    order = names or list(ROUNDS)
    users = make_users()
    try:
        with truth.noted():
            while not (survived.rounds or survived.void) or time.monotonic() < started + seconds:
                name = order[(survived.rounds + survived.void) % len(order)]
                before = time.monotonic()
                Round(name, f"{seed} {survived.rounds}", users, survived).run()
                print(f"{name}: {time.monotonic() - before:.1f} s", flush=True)
    except Wrong as wrong:
        print(wrong)
        return 1
    finally:
        print(f"{time.monotonic() - started:.0f} s, {survived}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
