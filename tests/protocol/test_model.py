"""The protocol holds in every interleaving, and not without any of its rules. The page and the code tell of each."""

import re

import pytest

from tests.docs.test_docs import PACKAGE, page

from .scenarios import HISTORIES, RULES, SCENARIOS, TOGETHER, explore

pytestmark = pytest.mark.once

PROTOCOL = page("discussions/protocol.md")
CODE = {path: path.read_text() for kind in ("py", "lua") for path in PACKAGE.rglob(f"*.{kind}")}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_history_breaks_a_promise(scenario: str) -> None:
    found = explore(scenario)
    assert not found.what, (found.what, [move for move, _ in found.history])


@pytest.mark.parametrize(("rule", "scenario"), HISTORIES)
def test_each_rule_is_needed(rule: str, scenario: str) -> None:
    others = TOGETHER.get(rule, [])
    assert not others or not explore(scenario, others).what
    assert explore(scenario, [rule, *others]).what


def test_the_page_tells_of_each_rule() -> None:
    told = re.findall(r"^- \*\*`(\w+)`: ", PROTOCOL, re.MULTILINE)
    assert sorted(told) == sorted(RULES)


def test_the_code_names_each_rule_where_it_is_kept() -> None:
    assert {name for code in CODE.values() for name in re.findall(r"\brule: ([a-z_]+)", code)} == RULES
