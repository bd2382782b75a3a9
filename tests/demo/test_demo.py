import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import PATIENCE, wait_until

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.slow,
]

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Demo:
    process: subprocess.Popen[str]
    home: Path  # where it has all its files

    def processes(self) -> dict[int, str]:
        """The command lines of all that it has started, itself included."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                # Redis writes its title over its environment, but works in its directory.
                ours = str(self.home).encode() in (entry / "environ").read_bytes() + os.readlink(entry / "cwd").encode()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if ours and command:  # a zombie has none
                found[int(entry.name)] = command
        return found

    def is_busy(self) -> bool:
        commands = " ".join(self.processes().values())
        wanted = ("demo_project.asgi", "flush_counters --loop", "-server ")
        return all(each in commands for each in wanted)

    def has_left_nothing(self) -> bool:
        return not self.processes() and not list(self.home.iterdir())


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Demo]]:
    """A function that starts a command of the demo; what is left of it in the end is killed."""
    started = []

    def start(*command: str) -> Demo:
        home = tmp_path / str(len(started))
        home.mkdir()
        # With it, what a command says to a pipe would not wait in a buffer.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        inherited |= {"DJANGO_SETTINGS_MODULE": "demo_project.settings", "TMPDIR": str(home)}
        process = subprocess.Popen(
            [sys.executable, "manage.py", *command],
            cwd=ROOT,
            env=inherited,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(Demo(process, home))
        return started[-1]

    yield start
    for demo in started:
        for pid in demo.processes():
            os.kill(pid, signal.SIGKILL)
        demo.process.communicate()


def test_every_badge_is_right_in_the_end(start):
    demo = start("demo", "--seconds=4", "--users=40", "--clients=4", "--kills=2")
    output, _ = demo.process.communicate(timeout=PATIENCE)
    assert demo.process.returncode == 0, output
    assert demo.has_left_nothing()
    table = dict(re.findall(r"│ (\S.*?) +│ +(\S.*?) │", output))
    assert int(table["notifications"].replace(",", "")) > 0
    assert table["requests"].endswith(", 0 failed")
    assert table["flusher killed"].startswith("2 times, ")
    assert table["badges compared with the rows"] == "200, 20 of them over HTTP"
    assert table["badges wrong"] == "0"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_process_outlives_it(start, signum, code):
    demo = start("demo", "--seconds=60")
    wait_until(demo.is_busy)
    demo.process.send_signal(signum)
    output, _ = demo.process.communicate(timeout=PATIENCE)
    assert demo.process.returncode == code
    assert "Traceback" not in output
    wait_until(demo.has_left_nothing)


def test_serve_says_where_until_it_is_stopped(start):
    demo = start("serve", "--port=18000")
    address = next(line for line in demo.process.stdout if line.startswith("http"))
    assert re.fullmatch(r"http://127\.0\.0\.1:18\d\d\d/\n", address)
    demo.process.send_signal(signal.SIGINT)
    demo.process.communicate(timeout=PATIENCE)
    assert demo.process.returncode == 0
    assert demo.has_left_nothing()
