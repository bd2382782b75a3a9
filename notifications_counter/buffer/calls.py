"""Calls of commands and of the Lua scripts: one file each, known to Redis by its SHA-1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from json.encoder import encode_basestring
from typing import Any, NamedTuple

Argument = str | int | bytes

ARGUMENTS = 3900
"""The most arguments of a command. Some managed servers refuse 4,000."""

REASON = 300
"""The most characters of a reason or a failure that are noted."""

OWNERS_PER_CALL = 1000
"""The most owners in one call, so that no script blocks Redis for more than a few milliseconds, or has more than
ARGUMENTS arguments: an owner takes three at most."""

LUA = files(__package__).joinpath("lua")


class Script(NamedTuple):
    """A script, and its SHA-1."""

    source: str
    sha: str


@cache
def script(name: str) -> Script:
    """Return the script in ``lua/<name>.lua``, after ``shared.lua``."""
    shared, body = (LUA.joinpath(f"{file}.lua").read_text(encoding="utf-8") for file in ("shared", name))
    source = shared + body
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


class Call(NamedTuple):
    """A call of a command or a script, by its ``name``."""

    name: str
    keys: tuple[Argument, ...]
    args: tuple[Argument, ...] = ()
    script: Script | None = None

    @classmethod
    def of(cls, name: str, keys: Sequence[Argument], args: Sequence[Argument] = ()) -> Call:
        """Return the call of a script."""
        return cls(name, tuple(keys), tuple(args), script(name))

    @property
    def command(self) -> tuple[Argument, ...]:
        """The command to send. It names a script by its SHA-1."""
        if self.script is None:
            return (self.name, *self.keys, *self.args)
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    @property
    def command_with_source(self) -> tuple[Argument, ...]:
        """The command to send to a server that does not know the script."""
        assert self.script
        return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.args)


Answer = tuple[Call, Any]
"""A call and its reply, which may be a ResponseError."""


def owners_as_json(owners: Sequence[str]) -> str:
    """Return owners as one argument, which is faster than a thousand. For one owner, ``json.dumps`` would take ten
    times as long."""
    return f"[{','.join(map(encode_basestring, owners))}]"
