"""Every event of the log and every metric is documented, and no other."""

import ast
import re

import pytest

from notifications_counter.upkeep.history import MESSAGES
from tests.docs.test_docs import first_cells, page, section
from tests.source import trees

pytestmark = pytest.mark.once

MONITOR, ALERTS = page("howto/monitor.md"), page("howto/alerts.yml")


def events_in_code() -> set[str]:
    found = set(MESSAGES)
    for node in (node for tree in trees().values() for node in ast.walk(tree)):
        if isinstance(node, ast.Dict):
            entries = {k.value: v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)}
            if isinstance(event := entries.get("event"), ast.Constant):
                found.add(event.value)
    return found


def test_every_event_of_the_log_is_documented_and_no_other() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", section(MONITOR, "The log"), re.MULTILINE)) == events_in_code()


def test_every_metric_is_documented_and_has_an_alert() -> None:
    pytest.importorskip("prometheus_client")
    from notifications_counter.contrib.prometheus import PREFIX, CounterCollector

    metrics = {m.name.removeprefix(PREFIX) + "_total" * (m.type == "counter") for m in CounterCollector().describe()}
    assert {f"`{name}`" for name in metrics} == first_cells(section(MONITOR, "Metrics")) - {"metric"}
    assert set(re.findall(rf"{PREFIX}(\w+)", ALERTS)) == metrics
