"""The documentation names what there is, and nothing else; its code is code. `make docs` follows the links."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.dispatch import Signal

from notifications_counter import signals
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
from notifications_counter.monitoring.status import CounterStatus, Status
from notifications_counter.timeseries import CleanResult, TimeSeries

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "notifications_counter"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS = sorted(name for name, app in get_commands().items() if app.startswith("notifications_counter"))


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def prose(text: str) -> str:
    """A page without its code blocks, whose comments look like headings."""
    return FENCE.sub("", text)


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)


def section(text: str, heading: str) -> str:
    """What is below a heading, up to the next one that is not below it."""
    start = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.MULTILINE)
    assert start, f"no heading {heading!r}"
    rest = text[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", FENCE.sub(lambda code: "\n" * len(code[0]), rest), re.MULTILINE)
    return rest[: end.start()] if end else rest


def first_cells(text: str) -> set[str]:
    """The first cell of each row of the tables."""
    return set(re.findall(r"^\| (.+?) \|", text, re.MULTILINE)) - {"|"}


def python_blocks(text: str) -> list[str]:
    return [code for language, code in FENCE.findall(text) if language == "python"]


def test_every_setting_has_a_section() -> None:
    assert [h for h in headings(page("reference/settings.md")) if h != "Settings"] == [f"`{name}`" for name in ENTRIES]


def test_the_defaults_of_settings_are_in_the_table() -> None:
    text = page("reference/settings.md")
    for name, entry in ENTRIES.items():
        default = repr(entry.default).replace("'", '"')
        assert f"| [`{name}`](#{name.lower()}) | `{default}` |" in text


def test_every_command_has_a_section() -> None:
    assert [h for h in headings(page("reference/commands.md")) if h != "Commands"] == [f"`{name}`" for name in COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_in_its_section(name: str) -> None:
    def options(command: BaseCommand) -> dict[str, str]:
        return {
            action.option_strings[-1]: action.metavar or (action.dest.upper() if action.nargs != 0 else "")
            for action in command.create_parser("manage.py", name)._actions
            if action.option_strings
        }

    theirs = options(BaseCommand())
    own = {
        o: metavar for o, metavar in options(load_command_class(get_commands()[name], name)).items() if o not in theirs
    }
    rows = first_cells(section(page("reference/commands.md"), f"`{name}`"))
    assert {f"`{option} {metavar}`".replace(" `", "`") for option, metavar in own.items()} == {
        row for row in rows if row.startswith("`--")
    }


def test_every_system_check_is_documented() -> None:
    code = "".join(path.read_text() for path in PACKAGE.glob("checks/*.py"))
    ids = [f"`notifications_counter.{name}`" for name in sorted(set(re.findall(r'"([EW]\d{3})"', code)))]
    assert re.findall(r"^\| (`.+?`) \|", page("reference/checks.md"), re.MULTILINE) == ids


def test_every_name_of_the_inbox_is_documented() -> None:
    text = page("reference/inbox.md")
    assert {name for name in first_cells(section(text, "URLs")) if ":" in name} == {
        f"`{urls.app_name}:{pattern.name}`" for pattern in urls.urlpatterns
    }
    assert {name.strip("`") for name in first_cells(section(text, "Templates"))} == {
        path.name for path in PACKAGE.glob("inbox/templates/notifications_inbox/*.html")
    }
    assert first_cells(section(text, "Template tags")) == {f"`{{% {name} %}}`" for name in register.tags}
    kinds = {
        name
        for module in (api, views)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and not issubclass(kind, Exception)
    }
    assert not [name for name in kinds - {"OwnNotifications", "PageView"} if f"`{name}`" not in text]


@pytest.mark.parametrize(
    ("name", "heading", "kinds"),
    [
        ("reference/api.md", "Counters", [Counter]),
        ("reference/api.md", "`NotificationQuerySet`", [NotificationQuerySet]),
        ("reference/api.md", "`NotificationController(user)`", [NotificationController]),
        ("timeseries.md", "Functions", [TimeSeries, CleanResult]),
        ("events.md", "Functions", [EventLog]),
    ],
)
def test_every_public_name_is_documented(name: str, heading: str, kinds: list[type]) -> None:
    text = section(page(name), heading)
    missing = [
        name
        for kind in kinds
        for name in vars(kind)
        if not name.startswith("_") and not re.search(rf"`{name}[`(]", text)
    ]
    assert not missing


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("Notifications", Notification),
        ("`UserNotificationsCount`", UserNotificationsCount),
        ("`UserKindNotificationsCount`", UserKindNotificationsCount),
        ("`BaseCount`", BaseCount),
    ],
)
def test_every_field_is_documented(heading: str, model: type) -> None:
    text = section(page("reference/api.md"), heading)
    assert not [f.name for f in model._meta.fields if f.name != "id" and f"`{f.name}`" not in text]


def test_every_error_is_documented() -> None:
    names = re.findall(r"^class (\w+)", (PACKAGE / "exceptions.py").read_text(), re.MULTILINE)
    assert set(names) == {row.strip("`") for row in first_cells(section(page("reference/api.md"), "Errors"))}


def test_every_signal_is_documented() -> None:
    names = {f"`{name}`" for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert names == set(headings(section(page("reference/api.md"), "Signals")))


def test_every_key_of_the_json_is_documented() -> None:
    text = section(page("reference/commands.md"), "`flush_counters`")
    assert not [key for key in Status().as_json() if f"`{key}`" not in text]
    keys = [field.name for field in fields(CounterStatus)]
    assert not [key for key in keys if f"``{key}``" not in str(CounterStatus.__doc__)]


def test_every_kind_of_problem_is_in_the_runbook() -> None:
    kinds = set(re.findall(r'Problem\([\w.]+, "(\w+)"', Path(status.__file__).read_text()))
    rows = first_cells(section(page("howto/runbook.md"), "What `--check` says"))
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == kinds


def test_every_argument_of_the_badge_is_documented() -> None:
    _, *arguments = inspect.signature(show_badge).parameters
    rows = first_cells(section(page("reference/inbox.md"), "Badge"))
    assert {f"`{name}`" for name in arguments} <= rows


def test_python_compiles() -> None:
    for path in PAGES:
        for number, code in enumerate(python_blocks(path.read_text())):
            compile(code, f"{path.name}, Python block {number}", "exec")
