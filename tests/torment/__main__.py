"""python -m tests.torment [--seconds N] [--seed S] [--database KIND] [--redis SETUP] [--round NAME …]: one round after
another until then.

Without a kind of database, each of SITES gets a part of the time.
"""

import argparse
import logging
import os
import random
import subprocess
import sys
import time
from collections import Counter as Tally
from contextlib import ExitStack

import django

import servers

SETUPS = ["cluster", "pool", "sentinel"]
SITES = [
    ["--database", "mariadb"],
    ["--database", "mysql"],
    *(["--database", "postgresql", *redis] for redis in ([], *(["--redis", setup] for setup in SETUPS))),
]
DATABASES = {"postgresql": servers.postgresql, "mariadb": servers.mariadb, "mysql": servers.mysql}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.torment")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the first round")
    parser.add_argument("--database", choices=[*DATABASES, "given"], help="given: by the environment, as for the tests")
    parser.add_argument("--redis", choices=SETUPS, help="otherwise one server; pool: connections are limited")
    parser.add_argument("--round", action="append", dest="rounds", default=[], metavar="NAME")
    chosen = parser.parse_args(arguments)
    if not chosen.database:
        command = [sys.executable, "-m", "tests.torment", *arguments, "--seconds", str(chosen.seconds / len(SITES))]
        return max(subprocess.run([*command, *site]).returncode for site in SITES)
    with ExitStack() as stack:
        if chosen.redis:
            os.environ["TEST_REDIS_SETUP"] = chosen.redis
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        if chosen.database in DATABASES:
            try:
                server = stack.enter_context(DATABASES[chosen.database]())
            except servers.Missing as reason:
                print(f"not tested: {chosen.database}, because there is {reason}")
                return int(chosen.database != "mysql")  # which some systems don't have
            os.environ |= {"TEST_DATABASE": chosen.database, "TEST_DATABASE_PORT": str(server.port)}
        django.setup()
        if chosen.database in DATABASES:
            from django.db import connection

            connection.creation.create_test_db(verbosity=0, serialize=False)
        return torment(chosen.seconds, chosen.seed, chosen.rounds)


def torment(seconds: float, seed: int, names: list[str]) -> int:
    from django.db import connection

    from tests.support import make_keys

    from . import truth
    from .rounds import USERS, Round, Wrong, rounds

    logger = logging.getLogger("notifications_counter")  # it has much to say
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    print(f"{connection.display_name}, seed {seed}", flush=True)
    users, survived, started, number = make_keys(USERS), Tally[str](), time.monotonic(), 0
    names = names or rounds()
    try:
        with truth.noted():
            while not number or time.monotonic() < started + seconds:
                name = names[(seed + number) % len(names)]  # a short run begins anywhere
                before = time.monotonic()
                try:
                    Round(name, seed + number, users, survived).run()
                    outcome = f"{time.monotonic() - before:.1f} s"
                except servers.Missing as reason:
                    outcome = f"missing: {reason}"
                number += 1
                print(f"{number:5} {name}: {outcome}", flush=True)
    except Wrong as wrong:
        print(wrong)
        return 1
    finally:
        print(f"{time.monotonic() - started:.0f} seconds. Survived:")
        print(*(f"{times:7,} {what}" for what, times in sorted(survived.items())), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
