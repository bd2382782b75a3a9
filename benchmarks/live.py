"""Measures the cost of open streams for their process, and their delay.

Each user has one stream. A delay begins with the call of ``create()``, so the commit to the database is part of it, and
ends with the event at the client.
"""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles

from django.contrib.auth import get_user_model
from django.test import Client

import servers
from notifications_counter.counters import unread
from notifications_counter.models import Notification

from . import bench
from .bench import Report, number, say, size, table
from .rivals import empty

FIRST = 20  # streams that are opened before memory is measured, so that modules are loaded


def streams(report: Report, quick: bool) -> str:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    empty()
    cookies = log_in(FIRST + (100 if quick else 1_000))
    port = servers.free_port()
    with server(port) as pid:
        lines = asyncio.run(measure(pid, port, cookies, 50 if quick else 500))
    return table(["streams", ""], lines)


@contextmanager
def server(port: int):
    """Run Uvicorn in one process."""
    command = [sys.executable, "-m", "uvicorn", "--factory", "django.core.asgi:get_asgi_application"]
    options = ["--host", servers.HOST, "--port", str(port), "--lifespan", "off", "--log-level", "error"]
    process = subprocess.Popen(servers.dies_with_parent([*command, *options]))
    try:
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection((servers.HOST, port)):
                break
            if process.poll() is not None:
                sys.exit("the server did not start")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def log_in(number: int) -> dict[int, str]:
    """Create users with a session. Returns the cookie of each."""
    model = get_user_model()
    users = model.objects.bulk_create(model(username=f"user{n}", password="!") for n in range(number))
    cookies = {}
    for user in users:
        client = Client()
        client.force_login(user)
        cookies[user.pk] = f"sessionid={client.cookies['sessionid'].value}"
    unread.heal(seconds=600)
    unread.counts(cookies)
    return cookies


class Streams:
    """The events that the clients have received, and when."""

    def __init__(self, port: int):
        self.port = port
        self.counts: dict[int, int] = {}
        self.at: dict[int, float] = {}
        self.tasks: list[asyncio.Task] = []

    async def open(self, user: int, cookie: str) -> None:
        reader, writer = await asyncio.open_connection(servers.HOST, self.port)
        path = "/notifications/counts/stream/"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {servers.HOST}\r\nCookie: {cookie}\r\n\r\n".encode())
        self.tasks.append(asyncio.create_task(self.read(user, reader, writer)))

    async def read(self, user: int, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        if not (status := await reader.readline()).startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"no stream: {status.decode()}{(await reader.read(2000)).decode()}")
        while line := await reader.readline():
            if found := re.match(rb'data: {"unread": (\d+)}', line):
                self.counts[user], self.at[user] = int(found[1]), time.perf_counter()
        raise RuntimeError("a stream has ended")

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            for task in self.tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.001)


async def measure(pid: int, port: int, cookies: dict[int, str], changes: int) -> list[list[str]]:
    (buffer,) = unread.buffers
    streams = Streams(port)
    loop, writer = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    users = list(cookies)

    async def open_streams(some: list[int]) -> float:
        started = time.perf_counter()
        for i in range(0, len(some), 50):
            for user in some[i : i + 50]:
                await streams.open(user, cookies[user])
            await streams.until(lambda i=i: all(user in streams.counts for user in some[i : i + 50]))
        return time.perf_counter() - started

    await open_streams(users[:FIRST])
    before = process(pid)
    seconds = await open_streams(users[FIRST:])
    after = process(pid)
    opened = len(users) - FIRST
    say(f"{opened} streams opened in {seconds:.1f} s")
    listening = buffer.client.redis.pubsub_numsub(buffer.keys.live)[0][1]

    def create(user: int) -> tuple[float, float]:
        started = time.perf_counter()
        Notification.objects.create(user_id=user, title="x")
        return started, time.perf_counter()

    delays, written = [], []
    for user in (users * changes)[:changes]:
        count = streams.counts[user]
        started, done = await loop.run_in_executor(writer, create, user)
        await streams.until(lambda user=user, count=count: streams.counts[user] > count)
        delays.append(streams.at[user] - started)
        written.append(done - started)
    hundredths = quantiles(delays, n=100)

    for task in streams.tasks:
        task.cancel()
    return [
        [f"memory of a stream, {size(opened)} open", f"{number((after['VmRSS'] - before['VmRSS']) / opened)} KiB"],
        ["connections to Redis that listen", str(listening)],
        ["`create()`, its commit included", bench.time(median(written))],
        ["from the start of `create()` to the event at the client, median", bench.time(median(delays))],
        ["… 99 % within", bench.time(hundredths[98])],
    ]


def process(pid: int) -> dict[str, int]:
    """The figures of Linux about a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+)", text, re.MULTILINE)}
