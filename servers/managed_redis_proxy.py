"""A proxy in front of Redis with the limits of a managed service: ``managed_redis_proxy.py PORT TARGET USER``.

- Its clients have the rights of a user of the server, who may not run every command, neither inside scripts. But they
  may call INFO outside scripts, which does not contain the ``run_id``.
- A command has at most 3,999 arguments.
"""

import asyncio
import re
import sys
from contextlib import suppress

HOST = "127.0.0.1"
LIMIT = 2**26
"""Bytes of a line."""
ARGUMENTS = 3999
PUSHED = {b"SUBSCRIBE", b"PSUBSCRIBE"}
Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


async def serve(reader: Reader, writer: Writer, target: int, user: bytes) -> None:
    """Answer one client, a command at a time."""
    with suppress(OSError, EOFError):
        there, back = await asyncio.open_connection(HOST, target, limit=LIMIT)
        back.write(b"AUTH %b any\r\n" % user)
        await read_value(there)
        try:
            while True:
                raw, arguments = await read_command(reader)
                name = arguments[0].upper()
                if len(arguments) > ARGUMENTS + 1:
                    writer.write(b"-ERR too many arguments\r\n")
                elif name == b"INFO":
                    writer.write(await info(raw, target))
                else:
                    back.write(raw)
                    if name in PUSHED:
                        await asyncio.gather(pump(reader, back), pump(there, writer))
                    writer.write(await read_value(there))
                await writer.drain()
        finally:
            back.transport.abort()
    writer.transport.abort()


async def info(command: bytes, target: int) -> bytes:
    """Return the reply to INFO, which the clients may not call themselves."""
    there, back = await asyncio.open_connection(HOST, target, limit=LIMIT)
    back.write(command)
    _, _, text = (await read_value(there)).partition(b"\r\n")
    back.transport.abort()
    text = re.sub(rb"run_id:\w+\r\n", b"", text.removesuffix(b"\r\n"))
    return b"$%d\r\n%b\r\n" % (len(text), text)


async def read_line(reader: Reader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line


async def read_command(reader: Reader) -> tuple[bytes, list[bytes]]:
    """Return a command as it came, and its parts."""
    raw = await read_line(reader)
    if not raw.startswith(b"*"):
        return raw, raw.split()
    parts = [await read_value(reader) for _ in range(int(raw[1:]))]
    return raw + b"".join(parts), [part.partition(b"\r\n")[2].removesuffix(b"\r\n") for part in parts]


async def read_value(reader: Reader) -> bytes:
    """Return a reply as it came, with its elements."""
    raw = await read_line(reader)
    kind, size = raw[:1], raw[1:].strip()
    if kind in b"$=!" and int(size) >= 0:
        return raw + await reader.readexactly(int(size) + 2)
    if kind in b"*~>%|" and int(size) > 0:
        number = int(size) * (2 if kind in b"%|" else 1) + (kind in b"|>")  # a push or attribute comes before the reply
        return raw + b"".join([await read_value(reader) for _ in range(number)])
    return raw


async def pump(reader: Reader, writer: Writer) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()
    raise EOFError


async def main(port: str, target: str, user: str) -> None:
    server = await asyncio.start_server(lambda r, w: serve(r, w, int(target), user.encode()), HOST, port, limit=LIMIT)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
