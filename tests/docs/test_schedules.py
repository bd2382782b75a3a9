"""What docs/howto/in-production.md writes into files is understood by those who read them."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from tests.docs.test_docs import COMMANDS, FENCE, PAGES, ROOT, page

pytestmark = pytest.mark.once

CALLS = [
    (path, line)
    for path in PAGES
    for _, code in FENCE.findall(path.read_text())
    for line in re.findall(rf"(?<!`)manage\.py\W+((?:{'|'.join(COMMANDS)})\b.*)", code)
]


def test_there_are_calls() -> None:
    assert {path.name for path, _ in CALLS} >= {"in-production.md", "commands.md"}


@pytest.mark.parametrize(("path", "line"), CALLS, ids=lambda value: value.name if isinstance(value, Path) else value)
def test_commands_have_the_options_that_they_are_called_with(path: Path, line: str) -> None:
    command, *arguments = shlex.split(re.sub(r'[",\]]', " ", line), comments=True)
    load_command_class(get_commands()[command], command).create_parser("manage.py", command).parse_args(arguments)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="missing: systemd-analyze")
def test_the_units_of_systemd(tmp_path: Path) -> None:
    text = page("howto/in-production.md")
    names = re.findall(r"/etc/systemd/system/(\S+\.service)`", text)
    codes = [code for language, code in FENCE.findall(text) if language == "ini"]
    for name, code in zip(names, codes, strict=True):
        here = code.replace("/srv/mysite/venv/bin/python", sys.executable).replace("/srv/mysite", str(ROOT))
        (tmp_path / name).write_text(here)
        done = subprocess.run(["systemd-analyze", "verify", str(tmp_path / name)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
