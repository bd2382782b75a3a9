"""Commands as Redis reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from json.encoder import encode_basestring
from typing import NamedTuple, TypeVar

from .scripts import Script

Argument = str | int | bytes
TypedKeys = Sequence[tuple[Argument, str]]
"""Keys, each with the type that TYPE should report."""
T = TypeVar("T")
ARGUMENTS = 3900
"""The most arguments of a command. Some managed servers refuse 4,000."""

OWNERS_PER_CALL = 1000
"""The most owners in one call, so that no script blocks Redis for more than a few milliseconds, or has more than
ARGUMENTS arguments: an owner takes three at most."""

KINDS = {"H": "hash", "Z": "zset"}
"""The type of a key, by the first letter of the commands that use it. Others use strings."""


class _Sizes(dict[int, str]):
    def __missing__(self, size: int) -> str:
        self[size] = f"\r\n${size}\r\n"
        return self[size]


SIZES = _Sizes()
"""The separator before an argument, by the argument's length."""


def pack(arguments: Sequence[Argument], head: str = "", before: int = 0) -> bytes:
    """Return a command as Redis reads it, in a fraction of the time of redis-py. ``head`` is the result of
    ``pack_head`` for the first arguments, of which there are ``before``."""
    try:
        texts = "".join([SIZES[len(argument)] + argument for argument in arguments])  # type: ignore[arg-type,operator]
    except TypeError:  # not all are texts
        if bytes not in map(type, arguments):
            return pack(list(map(str, arguments)), head, before)
    else:
        packed = f"*{before + len(arguments)}{head}{texts}\r\n"
        if packed.isascii():
            return packed.encode()
    parts = [argument if isinstance(argument, bytes) else str(argument).encode() for argument in arguments]
    sized = [b"\r\n$%d\r\n%b" % (len(part), part) for part in parts]
    return b"".join([b"*%d%b" % (before + len(parts), head.encode()), *sized, b"\r\n"])


def pack_head(arguments: Sequence[Argument]) -> str:
    """Return the first arguments of a command as Redis reads them."""
    return pack(arguments).decode().removeprefix(f"*{len(arguments)}").removesuffix("\r\n")


try:
    from hiredis import pack_command as pack_command
except ImportError:
    pack_command = pack


class Command(NamedTuple):
    """A command, and a key on its server. If it ``may_be_refused``, the outcome is None then."""

    name: str
    key: str
    arguments: tuple[Argument, ...]
    may_be_refused: bool = False

    @property
    def script(self) -> None:
        return None

    @property
    def typed_keys(self) -> TypedKeys:
        return [(key, KINDS.get(self.name[0], "string")) for key in self.arguments[:1]]

    @property
    def packed(self) -> bytes:
        return pack_command((self.name, *self.arguments))


class Call(NamedTuple):
    """A call of a script. ``head`` is the part that is the same each time, as ``pack_head`` returns it."""

    name: str
    key: str
    script: Script
    keys: Sequence[str]
    head: str
    args: Sequence[Argument] = ()

    @property
    def typed_keys(self) -> TypedKeys:
        return list(zip(self.keys, self.script.types, strict=False))

    @property
    def packed(self) -> bytes:
        return pack(self.args, self.head, 3 + len(self.keys))

    @property
    def by_source(self) -> Call:
        """The same call for a server that does not know the script."""
        return self._replace(head=pack_head(("EVAL", self.script.source, len(self.keys), *self.keys)))


def call_of(script: Script, keys: Sequence[str], args: Sequence[Argument] = ()) -> Call:
    """Return a call of a script."""
    return Call(script.name, keys[0], script, keys, pack_head(("EVALSHA", script.sha, len(keys), *keys)), args)


class Get:
    """An MGET of a key, and of others on the same server: ``prefix`` followed by each of the ``ends``. It is packed
    fastest if ends of the same length follow each other."""

    __slots__ = ("key", "prefix", "ends")
    name = "MGET"
    script = None
    typed_keys: TypedKeys = ()

    def __init__(self, key: str, prefix: str, ends: Sequence[bytes]):
        self.key, self.prefix, self.ends = key, prefix, ends

    @property
    def packed(self) -> bytes:
        """The command as Redis reads it. ``pack_command`` would take longer for many keys."""
        first, prefix = self.key.encode(), self.prefix.encode()
        if len(self.ends) == 1:
            last = prefix + self.ends[0]
            return b"*3\r\n$4\r\nMGET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(first), first, len(last), last)
        parts = [b"*%d\r\n$4\r\nMGET\r\n$%d\r\n%b" % (len(self.ends) + 2, len(first), first)]
        for length, run in groupby(self.ends, len):
            head = b"\r\n$%d\r\n%b" % (len(prefix) + length, prefix)
            parts += (head, head.join(run))
        return b"".join([*parts, b"\r\n"])


def owners_as_json(owners: Sequence[str]) -> str:
    """Return owners as one argument, which is faster than a thousand. For one owner, ``json.dumps`` would take ten
    times as long."""
    return f"[{','.join(map(encode_basestring, owners))}]"


def chunked(items: Sequence[T], most: int) -> Sequence[Sequence[T]]:
    """Return items in chunks, each with at most ``most``."""
    if 0 < len(items) <= most:
        return [items]
    return [items[i : i + most] for i in range(0, len(items), most)]


def in_groups(items: Sequence[T], sizes: Sequence[int], most: int) -> list[Sequence[T]]:
    """Return items in groups, one for each command, whose sizes add up to at most ``most``. A larger item is alone."""
    if sum(sizes) <= most:
        return [items] if items else []
    groups, first, total = [], 0, 0
    for i, size in enumerate(sizes):
        total += size
        if total > most and i > first:
            groups.append(items[first:i])
            first, total = i, size
    return [*groups, items[first:]]
