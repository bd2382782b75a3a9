"""A relay between clients and a server, for tests and benchmarks that lose or delay messages."""

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .server import HOST, Server

NEVER = 600.0
"""The delay, in seconds, of a reply that never comes."""


class Relay:
    """Passes on all that clients and a server send to each other; a reply after the ``delay``, in seconds."""

    def __init__(self, server: Server):
        self.server, self.delay = server, 0.0
        self.socket = socket.create_server((HOST, 0))
        self.url = "redis://{}:{}/0".format(*self.socket.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def slow(self, seconds: float = NEVER) -> Iterator[None]:
        """Delay replies until the end of the block. Commands do not wait."""
        self.delay = seconds
        try:
            yield
        finally:
            self.delay = 0.0

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
        sources, replies = [client, server], deque[tuple[float, bytes]]()
        with client, server, suppress(OSError), _shut(client, server):
            while True:
                while replies and (replies[0][0] <= time.monotonic() or not self.delay):
                    data = replies.popleft()[1]
                    if not data or not self.pass_on(data, True, client):
                        return
                # No longer than until it learns that the delay is over.
                wait = min(0.05, max(0.0, replies[0][0] - time.monotonic())) if replies else None
                for source in select.select(sources, [], [], wait)[0]:
                    data = source.recv(2**20)
                    if source is server:
                        replies.append((time.monotonic() + self.delay, data))
                        sources = sources if data else [client]
                    elif not data or not self.pass_on(data, False, server):
                        return


@contextmanager
def _shut(*ends: socket.socket) -> Iterator[None]:
    """Shut sockets at the end: closing them is not enough while a process that was forked has a copy."""
    try:
        yield
    finally:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
