"""Every catalogue has every string, and is compiled."""

import gettext
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("notifications_counter", "demo_project")
CATALOGUES = [path.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("locale/*/*/django.po")]
FORGOTTEN = "run `make messages`, translate what is empty or fuzzy, and run it again"


def messages(compiled: Path) -> dict:
    with compiled.open("rb") as file:
        found = gettext.GNUTranslations(file)._catalog  # it has no public name
    return {text: translated for text, translated in found.items() if text}


@pytest.mark.once
@pytest.mark.skipif(not shutil.which("msgfmt"), reason="missing: GNU gettext")
def test_catalogues_are_complete_and_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    monkeypatch.setenv("LC_ALL", "C")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.mo"))
    for catalogue in CATALOGUES:
        for command in (["makemessages", "--all", "--no-obsolete", "--ignore", "inbox"], ["compilemessages"]):
            subprocess.run([sys.executable, "-m", "django", *command], cwd=tmp_path / catalogue.parents[3], check=True)
        check = ["msgfmt", "--check-format", "--statistics", "--output-file", os.devnull, tmp_path / catalogue]
        told = subprocess.run(check, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        assert not {"untranslated", "fuzzy"} & {*told.stderr.split()}, FORGOTTEN
        compiled = catalogue.with_suffix(".mo")
        assert messages(ROOT / compiled) == messages(tmp_path / compiled), FORGOTTEN
