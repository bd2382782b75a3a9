"""Processes agree on the database of a shard in every interleaving, and not without any of the rules."""

import pytest

from .databases import BREAKS, RULES, SCENARIOS, explore

pytestmark = [pytest.mark.once, pytest.mark.slow]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_history_breaks_a_promise(scenario: str) -> None:
    found = explore(scenario, first_only=True)
    assert not found.what, (found.what, found.history)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    assert explore(BREAKS[rule], [rule], first_only=True).what
