"""The protocol holds in every interleaving, and not without any of its rules."""

import re

import pytest

from tests.docs.test_docs import page

from . import databases, shards
from .model import HISTORIES, RULES, SCENARIOS, TOGETHER, explore

pytestmark = pytest.mark.once

PROTOCOL = page("discussions/protocol.md")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_history_breaks_a_promise(scenario: str) -> None:
    found = explore(scenario, first_only=True)
    assert not found.what, (found.what, [move for move, _ in found.history])


@pytest.mark.parametrize(("rule", "scenario"), HISTORIES)
def test_each_rule_is_needed(rule: str, scenario: str) -> None:
    assert explore(scenario, [rule, *TOGETHER.get(rule, [])], first_only=True).what


def test_the_page_tells_of_each_rule() -> None:
    told = re.findall(r"^- \*\*`(\w+)`", PROTOCOL, re.MULTILINE)
    assert sorted(told) == sorted([*RULES, *databases.RULES, *shards.RULES])
