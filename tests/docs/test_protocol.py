"""The page about the protocol tells of each rule that the code names, and the code names each where it is kept."""

import re
from importlib.resources import files

import pytest

from notifications_counter.buffer import scripts
from tests.docs.test_docs import PACKAGE, page

pytestmark = pytest.mark.once

LUA = files(scripts.__package__).joinpath("lua")
RULE = re.compile(r"\brules?: ([a-z_]+(?:, [a-z_]+)*)")


def rules(code: str) -> set[str]:
    """The rules that comments name."""
    return {name for names in RULE.findall(code) for name in names.split(", ")}


def told() -> set[str]:
    return set(re.findall(r"^- \*\*`(\w+)`: ", page("discussions/protocol.md"), re.MULTILINE))


def test_the_code_names_each_rule_where_it_is_kept() -> None:
    named = set.union(*(rules(path.read_text()) for kind in ("py", "lua") for path in PACKAGE.rglob(f"*.{kind}")))
    assert named <= told()
    assert told() - named == {"announce", "confirm", "fix"}  # kept by each script that replies LEFT


@pytest.mark.parametrize("name", sorted(file.name for file in LUA.iterdir()))
def test_lines_of_a_script_fit(name: str) -> None:
    assert max(map(len, LUA.joinpath(name).read_text().splitlines())) <= 120
