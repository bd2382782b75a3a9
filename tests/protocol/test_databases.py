"""Processes agree on the database and on the number of shards in every interleaving, and not without any rule."""

import pytest

from . import databases, shards

pytestmark = [pytest.mark.once, pytest.mark.slow]

MODELS = {"databases": databases, "shards": shards}


@pytest.mark.parametrize(("model", "scenario"), [(name, one) for name, m in MODELS.items() for one in m.SCENARIOS])
def test_no_history_breaks_a_promise(model: str, scenario: str) -> None:
    found = MODELS[model].explore(scenario, first_only=True)
    assert not found.what, (found.what, found.history)


@pytest.mark.parametrize(("model", "rule"), [(name, one) for name, m in MODELS.items() for one in m.RULES])
def test_each_rule_is_needed(model: str, rule: str) -> None:
    assert MODELS[model].explore(MODELS[model].RULES[rule], [rule], first_only=True).what
