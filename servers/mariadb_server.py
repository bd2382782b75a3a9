import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .programs import UNLESS_HIDDEN, Missing, system_program
from .server import HOST, Server, free_port, running, temporary_directory


@contextmanager
def mariadb(*options: str) -> Iterator[Server]:
    """Run MariaDB with a user `root` who needs no password, tuned for speed, not durability."""
    program, install = system_program("mariadbd"), system_program("mariadb-install-db")
    if not program or not install:
        raise Missing(f"no MariaDB: neither PATH nor /usr/sbin has mariadbd and mariadb-install-db{UNLESS_HIDDEN}")
    with temporary_directory() as directory:
        port, common = free_port(), ["--no-defaults", f"--datadir={directory / 'data'}"]
        common += ["--user=root"] if os.geteuid() == 0 else []
        common += ["--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"]
        command = [str(program), *common, f"--port={port}", f"--bind-address={HOST}", "--socket=socket"]
        command += ["--pid-file=pid", "--skip-name-resolve", "--character-set-server=utf8mb4", "--max-connections=200"]
        server = Server("MariaDB", port, directory, [*command, *options], _answers)
        server.prepare(str(install), *common, "--auth-root-authentication-method=normal", "--skip-test-db")
        with running(server):
            yield server


def _answers(port: int) -> bool:
    import pymysql

    with suppress(pymysql.OperationalError):
        pymysql.connect(host=HOST, port=port, user="root", connect_timeout=2).close()
        return True
    return False
