import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import PATIENCE

pytestmark = [pytest.mark.once, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts a command of the demo, which leaves no file."""
    # With PYTHONUNBUFFERED, what a command says to a pipe would not wait in a buffer.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    inherited |= {"DJANGO_SETTINGS_MODULE": "demo_project.settings", "TMPDIR": str(tmp_path)}

    def start(*command: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([sys.executable, "manage.py", *command], cwd=ROOT, env=inherited, **pipes)

    yield start
    assert not list(tmp_path.iterdir())


def test_every_badge_is_right_in_the_end(start):
    demo = start("demo", "--seconds=4", "--users=40", "--clients=4", "--kills=2")
    output, _ = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 0, output
    table = dict(re.findall(r"│ (\S.*?) +│ +(\S.*?) │", output))
    assert int(table["notifications"].replace(",", "")) > 0
    assert table["requests"].endswith(", 0 failed")
    assert table["flusher killed"].startswith("2 times, ")
    assert table["badges compared with the rows"] == "200, 20 of them over HTTP"
    assert table["badges wrong"] == "0"


def test_serve_says_where_until_it_is_stopped(start):
    demo = start("serve", "--port=18000")
    address = next(line for line in demo.stdout if line.startswith("http"))
    assert re.fullmatch(r"http://127\.0\.0\.1:18\d\d\d/\n", address)
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 0
