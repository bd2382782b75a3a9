"""The Lua scripts: one file each, known to Redis by its SHA-1."""

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: bytes
    sha: str


@cache
def script(name: str) -> Script:
    """The script in ``lua/<name>.lua``."""
    source = files(__package__).joinpath("lua", f"{name}.lua").read_bytes()
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest())
