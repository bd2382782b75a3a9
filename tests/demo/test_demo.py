import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.once
@pytest.mark.slow
def test_every_badge_is_right_in_the_end(tmp_path):
    """Although the flusher is killed. Nothing is left of it all."""
    demo = [sys.executable, "manage.py", "demo", "--seconds=4", "--users=40", "--clients=4", "--kills=2"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "demo_project.settings", "TMPDIR": str(tmp_path)}
    output = subprocess.run(demo, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    table = dict(re.findall(r"│ (\S.*?) +│ +(\S.*?) │", output))
    assert int(table["notifications"].replace(",", "")) > 0
    assert table["requests"].endswith(", 0 failed")
    assert table["flusher killed"].startswith("2 times, ")
    assert table["badges compared with the rows"] == "200, 20 of them over HTTP"
    assert table["badges wrong"] == "0"
    assert not list(tmp_path.iterdir())
