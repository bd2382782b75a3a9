"""The Lua scripts name their keys, and share what they have in common."""

import re
from importlib.resources import files

import pytest

from notifications_counter.buffer import calls
from notifications_counter.buffer.calls import script
from notifications_counter.buffer.keys import Keys

pytestmark = pytest.mark.once

LUA = files(calls.__package__).joinpath("lua")
NAMES = sorted(file.name.removesuffix(".lua") for file in LUA.iterdir() if file.name != "shared.lua")
ORDER = [*Keys.__annotations__]
SHARD = [name for name in NAMES if set(script(name).keys) <= set(ORDER)]


def head(name: str) -> str:
    """The comment at the beginning of a script."""
    return "".join(re.findall(r"\A(?:--.*\n)+", LUA.joinpath(f"{name}.lua").read_text()))


def code(name: str) -> str:
    return re.sub(r"--.*", "", LUA.joinpath(f"{name}.lua").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_a_head_says_what_a_script_is_given_and_replies(name):
    labels = re.findall(r"^-- (KEYS|ARGV|Reply)\b", head(name), re.MULTILINE)
    assert labels == ["KEYS", *(["ARGV"] if "ARGV" in code(name) else []), "Reply"]


@pytest.mark.parametrize("name", SHARD)
def test_the_keys_of_a_shard_are_in_one_order(name):
    assert list(script(name).keys) == sorted(script(name).keys, key=ORDER.index)


def test_a_key_has_the_same_type_in_every_script():
    types = {pair for name in SHARD for pair in re.findall(r"(\w+) \((hash|integer|set|text|zset)", head(name))}
    assert len(types) == len({key for key, _ in types}) == len({key for name in SHARD for key in script(name).keys})


def with_shared(code: str) -> str:
    """A script behind the shared functions that it calls, and those that these call."""
    for part in reversed(LUA.joinpath("shared.lua").read_text().split("\n\n")):
        defined = re.search(r"^local (?:function )?(\w+)", part, re.MULTILINE)
        if defined and re.search(rf"\b{defined[1]}\b", code):
            code = re.sub(r"--.*", "", part) + code
    return code


@pytest.mark.parametrize("name", SHARD)
def test_a_script_uses_the_keys_that_it_names_and_no_others(name):
    used_code = re.sub(r"'[^'\n]*'", "", with_shared(code(name)))
    used = {key for key in ORDER if re.search(rf"(?<![\w.]){key}(?!\w| =)", used_code)}
    first = set(script(name).keys[:1])  # of which the base is a part
    assert used - {"base"} | first == set(script(name).keys)
