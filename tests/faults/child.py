"""The flusher of tests/faults/flusher.py, as the test sees it that has started it."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


class Child:
    def __init__(self, environment: dict[str, str], *arguments: Any):
        command = [sys.executable, "-m", "tests.faults.flusher", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.step = arguments[0] if arguments else ""
        # Traffic that goes on while it imports Django costs more than what the test is about.
        assert self.process.stdout.readline() == "ready\n"

    def reached(self) -> None:
        """Let it flush, and wait until it stands at its step."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{self.step}\n"

    def freeze(self) -> None:
        """Stop it with all its threads; one of them may be inside a transaction."""
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def go_on(self) -> None:
        """Let it end its run."""
        self.process.send_signal(signal.SIGCONT)
        self.process.communicate("\n", timeout=PATIENCE)
        assert self.process.returncode == 0
