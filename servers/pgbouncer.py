import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from .postgresql_server import answers, unprivileged_user
from .programs import UNLESS_HIDDEN, Missing, system_program
from .server import HOST, Server, free_port, running, temporary_directory


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
