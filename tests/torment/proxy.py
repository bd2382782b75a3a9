"""A proxy that misbehaves: what comes through may be delayed, also until after the other end has given up, dropped, or
cut in the middle together with its connection."""

import random
import socket
import time
from collections import Counter as Tally
from types import SimpleNamespace

from servers.relay import Relay

DELAY = (0.05, 0.7)  # seconds


class Proxy(Relay):
    """``acts``: what may happen, with which ``chance``; ``done``: what has."""

    def __init__(self, port: int, seed: str, acts: list[str]):
        self.acts, self.random = acts, random.Random(seed)
        self.chance, self.done = 0.0, Tally[str]()
        super().__init__(SimpleNamespace(port=port))

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def pass_on(self, data: bytes, is_reply: bool, to: socket.socket) -> bool:
        act = self.random.choice(self.acts) if self.random.random() < self.chance else ""
        if act:
            self.done[f"{'replies' if is_reply else 'requests'}_{act}"] += 1
        if act == "delayed":
            time.sleep(self.random.uniform(*DELAY))
        if act != "dropped":
            to.sendall(data[: len(data) // 2] if act == "cut" else data)
        return act != "cut"
