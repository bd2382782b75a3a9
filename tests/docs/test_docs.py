"""The documentation names what there is, and nothing else; its code is code. `make docs` follows the links."""

import inspect
import re
import shlex
from logging import DEBUG, ERROR, INFO, WARNING
from pathlib import Path

import pytest
from django.core.checks import run_checks
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.dispatch import Signal
from django.test import override_settings

from benchmarks.__main__ import BLOCK, COLLECTED, FILLED, QUESTIONS
from notifications_counter import exceptions, signals
from notifications_counter.conf import ENTRIES
from notifications_counter.counters import Counter
from notifications_counter.events import EventLog
from notifications_counter.inbox import api, urls, views
from notifications_counter.inbox.controller import NotificationController
from notifications_counter.inbox.templatetags.notifications_inbox import register, show_badge
from notifications_counter.models import (
    BaseCount,
    Notification,
    NotificationQuerySet,
    UserKindNotificationsCount,
    UserNotificationsCount,
)
from notifications_counter.monitoring import status
from notifications_counter.monitoring.status import Status
from notifications_counter.reports import EVENTS
from notifications_counter.timeseries import CleanResult, TimeSeries
from notifications_counter.upkeep.phases import Phase

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "notifications_counter"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS = sorted(name for name, app in get_commands().items() if app.startswith("notifications_counter"))


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)  # comments in code look like headings


def section(text: str, heading: str) -> str:
    """What is below a heading, up to the next one that is not below it."""
    start = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.MULTILINE)
    assert start, f"no heading {heading!r}"
    rest = text[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", FENCE.sub(lambda code: "\n" * len(code[0]), rest), re.MULTILINE)
    return rest[: end.start()] if end else rest


def items(text: str) -> set[str]:
    """What the items of lists begin with, if it is code."""
    return set(re.findall(r"^- (?:\*\*)?`(.+?)`", text, re.MULTILINE))


def python_blocks(text: str) -> list[str]:
    return [code for language, code in FENCE.findall(text) if language == "python"]


def test_every_setting_and_command_has_a_section() -> None:
    for name, things in (("settings", ENTRIES), ("commands", COMMANDS)):
        assert headings(page(f"reference/{name}.md"))[1:] == [f"`{thing}`" for thing in things]
    for name, entry in ENTRIES.items():
        default = repr(entry.default).replace("'", '"')
        assert section(page("reference/settings.md"), f"`{name}`").startswith(f"\nDefault: `{default}`")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_in_its_section(name: str) -> None:
    def options(command: BaseCommand) -> set[str]:
        actions = command.create_parser("manage.py", name)._actions
        return {action.option_strings[-1] for action in actions if action.option_strings}

    own = options(load_command_class(get_commands()[name], name)) - options(BaseCommand())
    told = re.findall(r"^- (`--.+?): ", section(page("reference/commands.md"), f"`{name}`"), re.MULTILINE)
    assert own == {option for item in told for option in re.findall(r"`(--[\w-]+)", item)}


def test_every_system_check_is_documented() -> None:
    code = "".join(path.read_text() for path in PACKAGE.glob("checks/*.py"))
    ids = {f"notifications_counter.{name}" for name in re.findall(r'"([EW]\d{3})"', code)}
    assert items(page("reference/checks.md")) == ids


def test_messages_are_shown_as_they_are() -> None:
    with override_settings(NOTIFICATIONS_COUNTER={"TOTAL_TLL": 60}):
        [message] = [each for each in run_checks() if each.id == "notifications_counter.E001"]
    assert str(message) in page("reference/checks.md")
    cause = "Error 111 connecting to 127.0.0.1:6379. Connection refused."
    fields = {"cache": "counters", "reason": cause, "seconds": 6}
    assert all(EVENTS[event].sentence % fields in page("howto/monitor.md") for event in ("redis_lost", "redis_found"))


def test_every_name_of_the_inbox_is_documented() -> None:
    text = page("reference/inbox.md")
    names = [f"{urls.app_name}:{pattern.name}" for pattern in urls.urlpatterns]
    assert sorted(re.findall(r"^\| `(.+?)` \|", section(text, "URLs"), re.MULTILINE)) == sorted(names)
    templates = {f"`{path.name}`" for path in PACKAGE.glob("inbox/templates/notifications_inbox/*.html")}
    assert {*re.findall(r"`\w+\.html`", section(text, "Templates"))} == templates
    assert items(section(text, "Template tags")) == {f"{{% {name} %}}" for name in register.tags}
    kinds = {name for module in (api, views) for name in re.findall(r"^class (\w+)", inspect.getsource(module), re.M)}
    assert not [name for name in kinds - {"OwnNotifications", "PageView", "Refused"} if f"`{name}`" not in text]


def names(*kinds: type) -> list[str]:
    return [name for kind in kinds for name in vars(kind) if not name.startswith("_")]


def fields_of(model: type) -> list[str]:
    return [field.name for field in model._meta.fields if field.name != "id"]


@pytest.mark.parametrize(
    ("name", "heading", "documented"),
    [
        ("reference/api.md", "Counters", names(Counter)),
        ("reference/api.md", "`NotificationQuerySet`", names(NotificationQuerySet)),
        ("reference/api.md", "`NotificationController(user)`", names(NotificationController)),
        ("timeseries.md", "Functions", names(TimeSeries, CleanResult)),
        ("events.md", "Functions", names(EventLog)),
        ("reference/api.md", "Notifications", fields_of(Notification)),
        ("reference/api.md", "`UserNotificationsCount`", fields_of(UserNotificationsCount)),
        ("reference/api.md", "`UserKindNotificationsCount`", fields_of(UserKindNotificationsCount)),
        ("reference/api.md", "`BaseCount`", fields_of(BaseCount)),
        ("reference/inbox.md", "Badge", list(inspect.signature(show_badge).parameters)[1:]),
        ("reference/commands.md", "`flush_counters`", [*Status().as_json()]),
    ],
)
def test_every_public_name_is_documented(name: str, heading: str, documented: list[str]) -> None:
    text = section(page(name), heading)
    assert not [each for each in documented if not re.search(rf"`{each}[`(]", text)]


def test_every_event_is_documented_with_its_fields() -> None:
    text = page("howto/monitor.md")
    levels = {"Errors": ERROR, "Warnings": WARNING, "At level INFO": INFO, "At level DEBUG": DEBUG}
    event = re.compile(r"^- `(\w+)`(?: \((.*?)\))?", re.MULTILINE)
    found = [
        (name, fields, level) for title, level in levels.items() for name, fields in event.findall(section(text, title))
    ]
    said = {name: (set(re.findall(r"%\((\w+)\)", about.sentence)), about.level) for name, about in EVENTS.items()}
    assert {name: (set(re.findall(r"\w+", fields)), level) for name, fields, level in found} == said


def test_every_error_and_signal_is_documented() -> None:
    text = page("reference/api.md")
    errors = re.findall(r"^class (\w+)", inspect.getsource(exceptions), re.MULTILINE)
    assert items(section(text, "Errors")) == set(errors)
    found = [f"`{name}`" for name, value in vars(signals).items() if isinstance(value, Signal)]
    assert sorted(headings(section(text, "Signals"))) == sorted(found)


def test_every_kind_of_problem_is_in_the_runbook() -> None:
    kinds = set(re.findall(r'Problem\([\w.]+, "(\w+)"', Path(status.__file__).read_text()))
    phases = {Phase.NEW, Phase.REPLACED, Phase.DEPLOYING, Phase.DUE}
    assert items(section(page("howto/runbook.md"), "What `--check` says")) == kinds | phases


def test_every_metric_is_documented_and_has_an_alert() -> None:
    pytest.importorskip("prometheus_client")
    from notifications_counter.contrib.prometheus import PREFIX, CounterCollector

    metrics = {m.name.removeprefix(PREFIX) + "_total" * (m.type == "counter") for m in CounterCollector().describe()}
    assert items(section(page("howto/monitor.md"), "Metrics")) == metrics
    assert set(re.findall(rf"{PREFIX}(\w+)", page("howto/alerts.yml"))) == metrics


def test_every_figure_is_measured() -> None:
    text = "".join(path.read_text() for path in FILLED)
    places = [name for _, name, _, _ in BLOCK.findall(text)]
    assert set(places) <= {*QUESTIONS, *COLLECTED}
    assert len(places) == len(set(places)) == text.count("<!-- measured: ")


def test_walks_name_files_and_functions_that_are_there() -> None:
    text = section((ROOT / "CONTRIBUTING.md").read_text(), "Where to start reading")
    files = re.findall(r"`([\w/]+(?:/|\.py|\.lua))`", text)
    names = re.findall(r"`(?:\w+\.)*(\w+)(?:\(\))?`", text)
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert not [name for name in files if not (ROOT / name).exists() and not [*PACKAGE.rglob(name)]]
    assert not [name for name in names if not re.search(rf"\b{name}\b", code)]


# ------------------------------------------------------------------------------------------------------------ code
def test_commands_have_the_options_that_they_are_called_with() -> None:
    calls = [
        line
        for path in PAGES
        for _, code in FENCE.findall(path.read_text())
        for line in re.findall(rf"(?<!`)manage\.py\W+((?:{'|'.join(COMMANDS)})\b.*)", code)
    ]
    assert {line.split()[0] for line in calls} > {"flush_counters", "recount_counters"}
    for line in calls:
        command, *arguments = shlex.split(re.sub(r'[",\]]', " ", line), comments=True)
        load_command_class(get_commands()[command], command).create_parser("manage.py", command).parse_args(arguments)
