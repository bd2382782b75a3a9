"""Every event of the log and every metric is documented, and no other."""

import ast
import logging
import re
from functools import cache

import pytest

from notifications_counter.maintenance.history import MESSAGES
from tests.docs.test_docs import first_cells, page, section
from tests.source import trees

pytestmark = pytest.mark.once

MONITOR, ALERTS = page("howto/monitor.md"), page("howto/alerts.yml")

EVENT_FUNCTIONS = ("log_event", "record")


@cache
def nodes() -> list[ast.AST]:
    return [node for tree in trees().values() for node in ast.walk(tree)]


def fields_in_code() -> dict[str, set[str]]:
    """The events of the log, each with its fields, or with those in its message."""
    found = {event: set(re.findall(r"%\((\w+)\)", message)) for event, message in MESSAGES.items()}
    for node in nodes():
        if isinstance(node, ast.Dict):
            entries = {k.value: v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)}
            if isinstance(event := entries.pop("event", None), ast.Constant):
                found[event.value] = set(entries)
    return found


def documented_fields() -> dict[str, set[str]]:
    rows = re.findall(r"^\| `(\w+)` \| [A-Z, ]+ \| (.*?) \|", section(MONITOR, "The log"), re.MULTILINE)
    return {event: set(re.findall(r"`(\w+)`", fields)) for event, fields in rows}


def test_every_event_of_the_log_is_documented_and_no_other() -> None:
    assert documented_fields().keys() == fields_in_code().keys()


def test_every_field_of_an_event_is_documented() -> None:
    documented = documented_fields()
    assert not {event: missing for event, fields in fields_in_code().items() if (missing := fields - documented[event])}


def test_every_record_of_the_log_has_an_event() -> None:
    calls = [node for node in nodes() if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger.")]
    calls = [call for call in calls if not ast.unparse(call.func).endswith("Filter")]
    assert calls
    assert not [ast.unparse(call) for call in calls if "extra" not in [keyword.arg for keyword in call.keywords]]


def test_every_message_of_an_event_is_used() -> None:
    calls = [node for node in nodes() if isinstance(node, ast.Call) and ast.unparse(node.func) in EVENT_FUNCTIONS]
    assert {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)} == set(MESSAGES)


def test_no_field_takes_the_place_of_what_logging_knows() -> None:
    usual = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    assert not [event for event, fields in documented_fields().items() if fields & usual]


def test_every_metric_is_documented_and_has_an_alert() -> None:
    pytest.importorskip("prometheus_client")
    from notifications_counter.contrib.prometheus import PREFIX, CounterCollector

    metrics = {m.name.removeprefix(PREFIX) + "_total" * (m.type == "counter") for m in CounterCollector().describe()}
    assert {f"`{name}`" for name in metrics} == first_cells(section(MONITOR, "Metrics")) - {"metric"}
    assert set(re.findall(rf"{PREFIX}(\w+)", ALERTS)) == metrics


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    alerts = re.split(r"^ +- alert: ", ALERTS, flags=re.MULTILINE)[1:]
    for alert in alerts:
        assert all(
            f"\n{key}" in re.sub(r"\n +", "\n", alert) for key in ("expr:", "labels:", "summary:", "description:")
        )
