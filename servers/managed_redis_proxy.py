"""A proxy in front of Redis with the limits of a managed service: ``managed_redis_proxy.py PORT TARGET USER``.

- Its clients have the rights of a user of the server, who may not run every command, neither inside scripts. But they
  may call INFO outside scripts.
- INFO does not contain the ``run_id``.
- A command has at most 3,999 arguments.
- A script uses only the keys that it gets, and others with the same hash tag. The proxy watches scripts by MONITOR. If
  one uses another key, the proxy reports it and ends.
"""

import asyncio
import os
import re
import sys
from contextlib import suppress

HOST = "127.0.0.1"
LIMIT = 2**26
"""Bytes of a line: MONITOR writes a command in one line."""
ARGUMENTS = 3999
PUSHED = {b"SUBSCRIBE", b"PSUBSCRIBE"}

SCRIPTS = {"EVAL", "EVALSHA"}
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
TAG = re.compile(r"{(.+?)}")
ONLY_KEYS = {"DEL", "EXISTS", "MGET", "RENAME", "UNLINK"}


class Proxy:
    """The proxy itself."""

    def __init__(self, target: int, user: str):
        self.target, self.user = target, user
        self.watches = asyncio.Event()

    async def run(self, port: int) -> None:
        await asyncio.start_server(self.serve, HOST, port, limit=LIMIT)
        await self.watch()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.target, limit=LIMIT)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client, a command at a time."""
        with suppress(OSError, EOFError):
            there, back = await self.connect()
            try:
                await self.watches.wait()
                back.write(b"AUTH %b any\r\n" % self.user.encode())
                await read_value(there)
                while True:
                    raw, arguments = await read_command(reader)
                    name = arguments[0].upper()
                    if len(arguments) > ARGUMENTS + 1:
                        writer.write(b"-ERR too many arguments\r\n")
                    elif name == b"INFO":
                        writer.write(await self.info(raw))
                    else:
                        back.write(raw)
                        if name in PUSHED:
                            await asyncio.gather(pump(reader, back), pump(there, writer))
                        writer.write(await read_value(there))
                    await writer.drain()
            finally:
                back.transport.abort()
        writer.transport.abort()

    async def info(self, command: bytes) -> bytes:
        """Return the reply to INFO, which the clients may not call themselves."""
        there, back = await self.connect()
        back.write(command)
        _, _, text = (await read_value(there)).partition(b"\r\n")
        back.transport.abort()
        text = re.sub(rb"run_id:\w+\r\n", b"", text.removesuffix(b"\r\n"))
        return b"$%d\r\n%b\r\n" % (len(text), text)

    async def watch(self) -> None:
        """Watch what scripts do, also after a restart of Redis."""
        while True:
            with suppress(OSError, EOFError):
                there, back = await self.connect()
                back.write(b"MONITOR\r\n")
                await read_line(there)
                self.watches.set()
                tags: set[str] = set()
                while True:
                    line = (await read_line(there)).decode(errors="replace")
                    name, *arguments = QUOTED.findall(line) or [""]
                    if name.upper() in SCRIPTS:
                        tags = tags_of(arguments[2 : 2 + int(arguments[1])])
                    elif " lua] " in line:
                        keys = arguments if name.upper() in ONLY_KEYS else arguments[:1]
                        if not tags_of(keys) <= tags:
                            print(f"A script with keys of {tags} has used other keys: {line}", flush=True)
                            os._exit(1)
            self.watches.clear()
            await asyncio.sleep(0.02)


def tags_of(keys: list[str]) -> set[str]:
    """Return the hash tags of keys. A key without one is its own tag."""
    return {found[1] if (found := TAG.search(key)) else key for key in keys}


async def read_line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line


async def read_command(reader: asyncio.StreamReader) -> tuple[bytes, list[bytes]]:
    """Return a command as it came, and its parts."""
    raw = await read_line(reader)
    if not raw.startswith(b"*"):
        return raw, raw.split()
    parts = []
    for _ in range(int(raw[1:])):
        parts.append(await read_value(reader))
    return raw + b"".join(parts), [part.partition(b"\r\n")[2].removesuffix(b"\r\n") for part in parts]


async def read_value(reader: asyncio.StreamReader) -> bytes:
    """Return a reply as it came, with its elements."""
    raw = await read_line(reader)
    kind, size = raw[:1], raw[1:].strip()
    if kind in b"$=!" and int(size) >= 0:
        return raw + await reader.readexactly(int(size) + 2)
    if kind in b"*~>%|" and int(size) > 0:
        number = int(size) * (2 if kind in b"%|" else 1) + (kind in b"|>")  # a push or attribute comes before the reply
        return raw + b"".join([await read_value(reader) for _ in range(number)])
    return raw


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()
    raise EOFError


if __name__ == "__main__":
    listen, target, user = sys.argv[1:]
    asyncio.run(Proxy(int(target), user).run(int(listen)))
