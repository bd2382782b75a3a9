"""A TCP proxy that misbehaves, as a process of its own: ``with Proxy(port, names) as proxy``.

It has a port for each name. What comes through one of them may be delayed, also until after the other end has given
up, dropped, or cut in the middle together with its connection; or its port may be shut.
"""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter as Tally
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import servers

DELAY = (0.05, 0.7)  # seconds


class Proxy:
    """The proxy, as the process that starts it sees it."""

    def __init__(self, target: int, names: Iterable[str], seed: str, acts: list[str]):
        self.names, self.setup = list(names), {"target": target, "seed": seed, "acts": acts}

    def __enter__(self) -> "Proxy":
        command = servers.dies_with_parent([sys.executable, "-m", __name__, *self.names])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tell(**self.setup)
        self.ports: dict[str, int] = json.loads(self._stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def _stdout(self) -> Any:
        return self.process.stdout

    def tell(self, **what: Any) -> None:
        """Change ``target``, a port; ``chance``, with which something happens to what comes through; ``shut``, the
        names of ports that are."""
        assert self.process.stdin
        print(json.dumps(what), file=self.process.stdin, flush=True)

    def behave(self) -> Tally[str]:
        """From now on nothing happens any more. Returns how often what has happened."""
        self.tell(chance=0.0, report=True)
        return Tally(json.loads(self._stdout.readline()))


class _Proxy:
    """The process itself."""

    def __init__(self) -> None:
        self.target, self.chance, self.random = 0, 0.0, random.Random()
        self.acts: list[str] = []
        self.shut: list[str] = []
        self.done: Tally[str] = Tally()
        self.open: dict[asyncio.StreamWriter, str] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self, names: list[str]) -> None:
        loop = asyncio.get_running_loop()
        commands = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        self.obey(json.loads(await commands.readline()))
        listening = {name: await asyncio.start_server(self.serve(name), servers.HOST, 0) for name in names}
        self.say({name: server.sockets[0].getsockname()[1] for name, server in listening.items()})
        while line := await commands.readline():
            self.obey(json.loads(line))

    def say(self, what: dict[str, int]) -> None:
        print(json.dumps(what), flush=True)

    def obey(self, command: dict[str, Any]) -> None:
        self.target = command.get("target", self.target)
        self.chance = command.get("chance", self.chance)
        self.shut = command.get("shut", self.shut)
        self.acts = command.get("acts", self.acts)
        if "seed" in command:
            self.random.seed(command["seed"])
        for writer, name in list(self.open.items()):
            if "target" in command or name in self.shut:
                writer.transport.abort()
        if "report" in command:
            self.say(self.done)

    def serve(self, name: str) -> Any:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if name in self.shut:
                writer.transport.abort()
                return
            try:
                there, back = await asyncio.open_connection(servers.HOST, self.target)
            except OSError:
                writer.transport.abort()
                return
            self.open |= {writer: name, back: name}
            ways = asyncio.gather(self.pump(reader, back, "requests"), self.pump(there, writer, "replies"))
            with suppress(OSError):
                await ways
            for end in (writer, back):
                self.open.pop(end, None)
                end.transport.abort()

        return connected

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> None:
        while data := await reader.read(2**16):
            act = self.random.choice(self.acts) if self.random.random() < self.chance else ""
            if act:
                self.done[f"{what} {act}"] += 1
            if act == "delayed":
                await asyncio.sleep(self.random.uniform(*DELAY))
            elif act == "cut":
                writer.write(data[: len(data) // 2])
                await writer.drain()
                raise ConnectionResetError
            if act != "dropped":
                writer.write(data)
                await writer.drain()
        writer.write_eof()


if __name__ == "__main__":
    asyncio.run(_Proxy().run(sys.argv[1:]))
