"""Relays between clients and Redis, which lose or delay messages."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

from .server import HOST, Server


class Relay:
    """Passes on all that clients and a Redis server send to each other."""

    def __init__(self, server: Server):
        self.server = server
        self.socket = socket.create_server((HOST, 0))
        self.url = "redis://{}:{}/0".format(*self.socket.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def pass_on(self, data: bytes, is_reply: bool, to: socket.socket) -> bool:
        """Send data to the other side. Return False to cut the connection."""
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
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError):
            while True:
                for source in select.select([client, server], [], [])[0]:
                    to = client if source is server else server
                    if not (data := source.recv(2**20)) or not self.pass_on(data, source is server, to):
                        return


NEVER = 600.0
"""The delay, in seconds, of a reply that never comes."""


class SlowRelay(Relay):
    """Passes each reply on after a number of seconds, or once the delay is over. Commands do not wait."""

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
        replies: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

        def send_commands() -> None:
            with suppress(OSError):
                while data := client.recv(2**20):
                    server.sendall(data)
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)

        def take_replies() -> None:
            data = b"none yet"
            while data:
                try:
                    data = server.recv(2**20)
                except OSError:
                    data = b""
                replies.put((time.monotonic() + self.delay, data))

        with client, server:
            threads = [threading.Thread(target=target, daemon=True) for target in (send_commands, take_replies)]
            for thread in threads:
                thread.start()
            with suppress(OSError):
                while (reply := replies.get())[1]:
                    self.hurry.wait(reply[0] - time.monotonic())
                    client.sendall(reply[1])
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
