"""Every event of the log and every metric is documented, and no other."""

import ast
import logging
import re
from functools import cache

import pytest

from notifications_counter.upkeep.history import MESSAGES
from tests.docs.test_docs import first_cells, page, section
from tests.source import trees

pytestmark = pytest.mark.once

MONITOR, ALERTS = page("howto/monitor.md"), page("howto/alerts.yml")


@cache
def nodes() -> list[ast.AST]:
    return [node for tree in trees().values() for node in ast.walk(tree)]


def events_in_code() -> set[str]:
    found = set(MESSAGES)
    for node in nodes():
        if isinstance(node, ast.Dict):
            entries = {k.value: v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)}
            if isinstance(event := entries.get("event"), ast.Constant):
                found.add(event.value)
    return found


def documented_fields() -> dict[str, set[str]]:
    rows = re.findall(r"^\| `(\w+)` \| [A-Z, ]+ \| (.*?) \|", section(MONITOR, "The log"), re.MULTILINE)
    return {event: set(re.findall(r"`(\w+)`", fields)) for event, fields in rows}


def test_every_event_of_the_log_is_documented_and_no_other() -> None:
    assert documented_fields().keys() == events_in_code()


def test_every_record_of_the_log_has_an_event() -> None:
    calls = [node for node in nodes() if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger.")]
    calls = [call for call in calls if not ast.unparse(call.func).endswith("Filter")]
    assert calls
    assert not [ast.unparse(call) for call in calls if "extra" not in [keyword.arg for keyword in call.keywords]]


def test_no_field_takes_the_place_of_what_logging_knows() -> None:
    usual = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    assert not [event for event, fields in documented_fields().items() if fields & usual]


def test_every_metric_is_documented_and_has_an_alert() -> None:
    pytest.importorskip("prometheus_client")
    from notifications_counter.contrib.prometheus import PREFIX, CounterCollector

    metrics = {m.name.removeprefix(PREFIX) + "_total" * (m.type == "counter") for m in CounterCollector().describe()}
    assert {f"`{name}`" for name in metrics} == first_cells(section(MONITOR, "Metrics")) - {"metric"}
    assert set(re.findall(rf"{PREFIX}(\w+)", ALERTS)) == metrics
