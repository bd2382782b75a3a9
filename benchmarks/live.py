"""Measures the cost of open streams for their process, and their delay.

Each user has one stream. A delay begins with the call of ``create()``, so the commit to the database is part of it, and
ends with the event at the client.
"""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import sys
import time
from pathlib import Path
from statistics import median

from django.contrib.auth import get_user_model
from django.test import Client

import servers
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from servers.server import serving

from . import bench
from .bench import Report, p99, size, table
from .rivals import empty, redis

ROOT = Path(__file__).resolve().parent.parent
FIRST = 20  # streams that are opened before memory is measured, so that modules are loaded
UVICORN = (
    f"uvicorn --app-dir {ROOT} --factory django.core.asgi:get_asgi_application --lifespan off --log-level error --host"
)


def streams(report: Report, quick: bool) -> str:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    empty()
    number = 100 if quick else 1_000
    model = get_user_model()
    cookies = {}
    for user in model.objects.bulk_create(model(username=f"user{n}", password="!") for n in range(FIRST + number)):
        client = Client()
        client.force_login(user)
        cookies[user.pk] = client.cookies["sessionid"].value
    unread.heal(seconds=600)
    with serving("Uvicorn", lambda port: socket.create_connection((servers.HOST, port)).close()) as server:
        server.start(sys.executable, "-m", *UVICORN.split(), servers.HOST, "--port", str(server.port))
        return table(["streams", ""], asyncio.run(_measure(server, cookies, number // 2)))


async def _measure(server: servers.Server, cookies: dict[int, str], changes: int) -> list[list[str]]:
    counts: dict[int, int] = {}
    at: dict[int, float] = {}
    events = asyncio.Condition()

    async def read(user: int) -> None:
        reader, writer = await asyncio.open_connection(servers.HOST, server.port)
        head = f"GET /counts/stream/ HTTP/1.1\r\nHost: {servers.HOST}\r\nCookie: sessionid="
        writer.write(f"{head}{cookies[user]}\r\n\r\n".encode())
        while line := await reader.readline():
            if found := re.match(rb'data: {"unread": (\d+)}', line):
                async with events:
                    counts[user], at[user] = int(found[1]), time.perf_counter()
                    events.notify_all()
        raise RuntimeError("a stream has ended")

    async def until(user: int, count: int) -> None:
        async with asyncio.timeout(60), events:
            await events.wait_for(lambda: counts.get(user, -1) >= count)

    def resident() -> int:
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[1])  # type: ignore[index]

    def create(user: int) -> tuple[float, float]:
        started = time.perf_counter()
        Notification.objects.create(user_id=user, title="x")
        return started, time.perf_counter() - started

    tasks, memory = [], 0
    for i, user in enumerate(cookies):
        memory = resident() if i == FIRST else memory
        tasks.append(asyncio.create_task(read(user)))
        await until(user, 0)
    opened = len(cookies) - FIRST
    memory = resident() - memory
    listening = sum(number for _, number in redis.pubsub_numsub(*redis.pubsub_channels()))  # type: ignore[union-attr]
    delays, written = [], []
    for user in list(cookies)[:changes]:
        started, took = await asyncio.to_thread(create, user)
        await until(user, 1)
        delays.append(at[user] - started)
        written.append(took)
    for task in tasks:
        task.cancel()
    return [
        [f"memory of a stream, {size(opened)} open", f"{bench.number(memory / opened)} KiB"],
        ["connections to Redis that listen", str(listening)],
        ["`create()`, its commit included", bench.time(median(written))],
        ["from the start of `create()` to the event at the client, median", bench.time(median(delays))],
        ["… 99 % within", bench.time(p99(delays))],
    ]
