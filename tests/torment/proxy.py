"""A proxy that misbehaves, as a process of its own: ``with Proxy(port, names) as proxy``.

It has a port for each name. What comes through one of them may be delayed, also until after the other end has given
up, dropped, or cut in the middle together with its connection; or its port may be shut.
"""

import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter as Tally
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import servers
from servers.relay import Relay

DELAY = (0.05, 0.7)  # seconds


class Proxy:
    """The proxy, as the process that starts it sees it."""

    def __init__(self, target: int, names: Iterable[str], seed: str, acts: list[str]):
        self.names, self.setup = list(names), {"target": target, "seed": seed, "acts": acts}

    def __enter__(self) -> "Proxy":
        command = servers.dies_with_parent([sys.executable, "-m", __name__, *self.names])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tell(**self.setup)
        self.ports: dict[str, int] = json.loads(self.process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def tell(self, **what: Any) -> None:
        """Change ``target``, a port; ``chance``, with which something happens to what comes through; ``shut``, the
        names of ports that are."""
        print(json.dumps(what), file=self.process.stdin, flush=True)

    def behave(self) -> Tally[str]:
        """From now on nothing happens any more. Returns how often what has happened."""
        self.tell(chance=0.0, report=True)
        return Tally(json.loads(self.process.stdout.readline()))


class _Faults:
    """What was told. ``port`` is the target."""

    port, chance = 0, 0.0
    acts: list[str] = []
    shut: list[str] = []

    def __init__(self) -> None:
        self.random, self.done = random.Random(), Tally[str]()


class _Port(Relay):
    """A port of the proxy."""

    def __init__(self, name: str, faults: _Faults):
        self.name, self.faults, self.open = name, faults, set[socket.socket]()
        super().__init__(faults)

    def pass_on(self, data: bytes, is_reply: bool, to: socket.socket) -> bool:
        faults = self.faults
        act = faults.random.choice(faults.acts) if faults.random.random() < faults.chance else ""
        if act:
            faults.done[f"{'replies' if is_reply else 'requests'} {act}"] += 1
        if act == "delayed":
            time.sleep(faults.random.uniform(*DELAY))
        if act != "dropped":
            to.sendall(data[: len(data) // 2] if act == "cut" else data)
        return act != "cut"

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        self.open |= {client, server}
        if self.name in self.faults.shut:
            self.close()
        super()._carry(client, server)
        self.open -= {client, server}

    def close(self) -> None:
        """Close all connections."""
        for end in list(self.open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def main(names: list[str]) -> None:
    faults, ports = _Faults(), list[_Port]()
    for line in sys.stdin:
        command = json.loads(line)
        faults.port = command.get("target", faults.port)
        faults.chance = command.get("chance", faults.chance)
        faults.acts = command.get("acts", faults.acts)
        faults.shut = command.get("shut", faults.shut)
        if "seed" in command:  # the first one
            faults.random.seed(command["seed"])
            ports = [_Port(name, faults) for name in names]
            print(json.dumps({port.name: port.socket.getsockname()[1] for port in ports}), flush=True)
        for port in ports:
            if "target" in command or port.name in faults.shut:
                port.close()
        if "report" in command:
            print(json.dumps(faults.done), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
