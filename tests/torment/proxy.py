"""A proxy that misbehaves: it has a port for each role. What comes through one of them may be delayed, also until after
the other end has given up, dropped, or cut in the middle together with its connection; or its port may be shut."""

import random
import socket
import time
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from contextlib import suppress

from servers.relay import Relay

DELAY = (0.05, 0.7)  # seconds


class Proxy:
    """``acts``: what may happen, with which ``chance``; ``done``: what has. ``shut``: the names of ports that are."""

    def __init__(self, port: int, names: Iterable[str], seed: str, acts: list[str]):
        self.port, self.acts, self.random = port, acts, random.Random(seed)
        self.chance, self.done = 0.0, Tally[str]()
        self.shut: Sequence[str] = ()
        self.relays = {name: _Port(name, self) for name in names}

    @property
    def ports(self) -> dict[str, int]:
        return {name: relay.socket.getsockname()[1] for name, relay in self.relays.items()}

    def lead_to(self, port: int) -> None:
        """Lead to another server, and cut all connections."""
        self.port = port
        self.close(list(self.relays))

    def close(self, names: Sequence[str]) -> None:
        """Cut the connections of these ports."""
        for end in [end for name in names for end in list(self.relays[name].open)]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        for relay in self.relays.values():
            relay.socket.close()
        self.close(list(self.relays))


class _Port(Relay):
    def __init__(self, name: str, proxy: Proxy):
        self.name, self.proxy, self.open = name, proxy, set[socket.socket]()
        super().__init__(proxy)  # type: ignore[arg-type]

    def pass_on(self, data: bytes, is_reply: bool, to: socket.socket) -> bool:
        proxy = self.proxy
        act = proxy.random.choice(proxy.acts) if proxy.random.random() < proxy.chance else ""
        if act:
            proxy.done[f"{'replies' if is_reply else 'requests'}_{act}"] += 1
        if act == "delayed":
            time.sleep(proxy.random.uniform(*DELAY))
        if act != "dropped":
            to.sendall(data[: len(data) // 2] if act == "cut" else data)
        return act != "cut"

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        self.open |= {client, server}
        if self.name in self.proxy.shut:
            self.proxy.close([self.name])
        super()._carry(client, server)
        self.open -= {client, server}
