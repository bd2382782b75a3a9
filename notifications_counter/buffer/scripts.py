"""The Lua scripts: one file each, known to Redis by its SHA-1.

The head of a script names its keys: ``-- KEYS  state (hash)  ready (text)``. Nothing else knows their order: the names
become local variables of the script, and callers send the keys that ``Script.keys`` lists.
"""

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

KEYS = re.compile(r"^-- KEYS((?:.|\n-- {5})+)", re.MULTILINE)
KEY = re.compile(r"(\w+) \((hash|integer|none|set|text|zset)\b")
TYPES = {"integer": "string", "text": "string"}
"""The types of keys, as TYPE reports them."""
COMMENT = re.compile(r"--.*")


@dataclass(frozen=True, slots=True)
class Script:
    """A script. ``keys`` are the names of its keys, in the order of KEYS, and ``types`` the types that TYPE reports."""

    name: str
    keys: tuple[str, ...]
    types: tuple[str, ...]
    source: bytes
    sha: str


@cache
def script(name: str) -> Script:
    """Return the script in ``lua/<name>.lua``, after its keys and the parts of ``shared.lua`` that it uses."""
    body = _read(name)
    head = KEYS.search(body)
    assert head, f"{name}.lua does not name its KEYS"
    keys, types = zip(*KEY.findall(head[1]), strict=True)
    source = f"local {', '.join(keys)} = unpack(KEYS)\n{_shared(body)}{body}".encode()
    return Script(
        name,
        keys,
        tuple(TYPES.get(kind, kind) for kind in types),
        source,
        sha1(source, usedforsecurity=False).hexdigest(),
    )


def _read(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def _shared(body: str) -> str:
    """Return the parts of ``shared.lua`` that a script uses. Each call creates them, so unused ones would cost time."""
    shared = ""
    for part in reversed(_read("shared").split("\n\n")):
        defined = re.search(r"^local (?:function )?(\w+)", part, re.MULTILINE)
        if defined and re.search(rf"\b{defined[1]}\b", COMMENT.sub("", shared + body)):
            shared = f"{part.strip()}\n{shared}"
    return shared
