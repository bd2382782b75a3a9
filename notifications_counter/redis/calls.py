"""Calls of commands and of Lua scripts."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

Argument = str | bytes
"""What is sent. No number: hiredis takes its ``repr()``, where the handler of a signal may run. If that raises, as at a
time limit, hiredis crashes the process."""

MAX_ARGUMENTS = 3900
"""The most arguments of a command. Some managed servers refuse 4,000."""

MAX_REASON_LENGTH = 300
"""The most characters of a reason or a failure that are noted."""


class Call(NamedTuple):
    """A call of a command or a script, by ``name``, with one of its keys and all arguments that are sent."""

    name: str
    key: str
    arguments: tuple[Argument, ...]
    source: str = ""
    must_arrive: bool = False  # if it is refused, Redis is left alone for a while, as if it were down

    @property
    def absent(self) -> str:
        """A key beside it, on the same node of a cluster, that never exists: no name of a caller's begins right behind
        the hash tag."""
        return self.key.partition("}")[0] + "}:absent"

    @property
    def guarded(self) -> Call:
        """The same call, for a cluster. A node that hands a slot over refuses a call of two keys of which one does not
        exist there. It would run a script of one, and find that others which this builds are not there any more."""
        if not self.source:
            return self
        evalsha, sha, number, key, *args = self.arguments
        if number != "1":
            return self
        return self._replace(arguments=(evalsha, sha, "2", key, self.absent, *args))

    @property
    def by_source(self) -> tuple[Argument, ...]:
        """The arguments to send to a server that does not know the script."""
        return ("EVAL", self.source, *self.arguments[2:])


def command(name: str, key: str, *args: Argument) -> Call:
    """Return the call of a command."""
    return Call(name, key, (name, key, *args))


class Scripts(dict[str, tuple[str, str]]):
    """The Lua scripts in the folder ``lua`` of a package, by name: source, behind ``shared.lua`` if there is one, and
    SHA-1, by which Redis knows it."""

    def __init__(self, package: str):
        self.folder = files(package).joinpath("lua")

    def __missing__(self, name: str) -> tuple[str, str]:
        shared = [file for file in self.folder.iterdir() if file.name == "shared.lua"]
        parts = [*shared, self.folder.joinpath(f"{name}.lua")]
        source = "".join(part.read_text(encoding="utf-8") for part in parts)
        self[name] = source, sha1(source.encode(), usedforsecurity=False).hexdigest()
        return self[name]

    def call(self, name: str, keys: Sequence[str], *args: Argument) -> Call:
        """Return the call of a script."""
        source, sha = self[name]
        return Call(name, keys[0], ("EVALSHA", sha, str(len(keys)), *keys, *args), source)


Answer = tuple[Call, Any]
"""A call and its reply, which may be a ResponseError."""


def chunked(items: Sequence[T], most: int) -> Sequence[Sequence[T]]:
    """Return items in chunks, each with at most ``most``."""
    return [items[i : i + most] for i in range(0, len(items), most)]


def in_groups(items: Sequence[T], sizes: Sequence[int], most: int) -> list[Sequence[T]]:
    """Return items in groups, one for each command, whose sizes add up to at most ``most``. A larger item is alone."""
    groups, first, total = [], 0, 0
    for i, size in enumerate(sizes):
        total += size
        if total > most and i > first:
            groups.append(items[first:i])
            first, total = i, size
    return [*groups, items[first:]] if items else []
