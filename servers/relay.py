"""What stands between clients and Redis, and loses or delays what they send to each other."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .server import HOST, Server


class Relay:
    """Stands between clients and a Redis server, and passes on what they send to each other."""

    def __init__(self, server: Server):
        self.server = server
        self.socket = socket.create_server((HOST, 0))
        self.url = "redis://{}:{}/0".format(*self.socket.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def pass_on(self, data: bytes, is_reply: bool, to: socket.socket) -> bool:
        """Send it to the other side. Returns False to cut the connection."""
        to.sendall(data)
        return True

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                try:
                    server = socket.create_connection((HOST, self.server.port))
                except OSError:  # the server has stopped
                    client.close()
                    continue
                threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError):
            while True:
                for source in select.select([client, server], [], [])[0]:
                    to = client if source is server else server
                    if not (data := source.recv(2**20)) or not self.pass_on(data, source is server, to):
                        return


NEVER = 600.0
"""Seconds after which a reply comes that never comes."""


class SlowRelay(Relay):
    """Passes each reply on after so many seconds, or once the delay is over. Commands do not wait."""

    def __init__(self, server: Server):
        self.delay = 0.0
        self.hurry = threading.Event()
        super().__init__(server)

    @contextmanager
    def slow(self, seconds: float = NEVER) -> Iterator[None]:
        self.hurry.clear()
        self.delay = seconds
        yield
        self.delay = 0.0
        self.hurry.set()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            commands = threading.Thread(target=self._pump, args=(client, server, False), daemon=True)
            commands.start()
            self._pump(server, client, True)
            commands.join()

    def _pump(self, source: socket.socket, to: socket.socket, is_reply: bool) -> None:
        with suppress(OSError):
            while data := source.recv(2**20):
                if is_reply and self.delay:
                    self.hurry.wait(self.delay)
                to.sendall(data)
        for end in (source, to):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
