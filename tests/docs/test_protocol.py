"""The page about the protocol says which script keeps which rule, and so do the scripts."""

import re
from importlib.resources import files

import pytest

import notifications_counter
from notifications_counter.buffer import scripts
from tests.docs.test_docs import page

pytestmark = pytest.mark.once

LUA = files(scripts.__package__).joinpath("lua")
RULE = re.compile(r"-- rules?: ([a-z_]+(?:, [a-z_]+)*)")


def rules(code: str) -> set[str]:
    """The rules that comments name."""
    return {name for names in RULE.findall(code) for name in names.split(", ")}


def kept() -> dict[str, set[str]]:
    """By script, or function of shared.lua: the rules that it keeps."""
    found = {file.name: rules(file.read_text()) for file in LUA.iterdir() if file.name != "shared.lua"}
    for part in LUA.joinpath("shared.lua").read_text().split("\n\n"):
        if name := re.search(r"^local function (\w+)", part, re.MULTILINE):
            found[f"{name[1]}()"] = rules(part)
    return {name: names for name, names in found.items() if names}


def test_the_table_and_the_scripts_name_the_same_rules() -> None:
    rows = re.findall(r"^\| `(\w+\.lua|\w+\(\))` \| (.*) \|$", page("discussions/protocol.md"), re.MULTILINE)
    assert {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in rows} == kept()


def explained() -> set[str]:
    return set(re.findall(r"^- \*\*`(\w+)`: ", page("discussions/protocol.md"), re.MULTILINE))


def test_each_rule_that_a_script_names_is_on_the_page() -> None:
    assert set.union(*kept().values()) <= explained()


def test_the_table_and_the_code_name_the_same_rules() -> None:
    """In Python, comments and docstrings name a rule in single backticks."""
    rows = re.findall(r"^\| `([\w/]+(?:/|\.py))` \| (.*) \|$", page("discussions/protocol.md"), re.MULTILINE)
    named = {}
    for name, _ in rows:
        place = files(notifications_counter).joinpath(name)
        code = "".join(
            file.read_text() for file in (place.iterdir() if name.endswith("/") else [place]) if file.is_file()
        )
        named[name] = set(re.findall(r"(?<!`)`(\w+)`(?!`)", code)) & explained()
    assert {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in rows} == named


@pytest.mark.parametrize("name", sorted(file.name for file in LUA.iterdir()))
def test_lines_of_a_script_fit(name: str) -> None:
    assert max(map(len, LUA.joinpath(name).read_text().splitlines())) <= 120
