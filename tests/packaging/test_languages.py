"""Every catalogue has every string, and is compiled."""

import gettext
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
CATALOGUES = sorted(
    path.relative_to(ROOT)
    for name in ("notifications_counter", "demo_project")
    for path in (ROOT / name).rglob("locale/*/LC_MESSAGES/django.po")
)
FORGOTTEN = "run `make messages`, translate what is empty or fuzzy, and run it again"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, with catalogues made from them."""
    copy = tmp_path_factory.mktemp("sources")
    for name in {catalogue.parts[0] for catalogue in CATALOGUES}:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.mo"))
    for app in {catalogue.parents[3] for catalogue in CATALOGUES}:
        for command in (["makemessages", "--all", "--no-obsolete", "--ignore", "inbox"], ["compilemessages"]):
            subprocess.run([sys.executable, "-m", "django", *command], cwd=copy / app, env=environment(), check=True)
    return copy


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"} | {"LC_ALL": "C"}


def messages(compiled: Path) -> dict:
    with compiled.open("rb") as file:
        found = gettext.GNUTranslations(file)._catalog  # it has no public name
    return {text: translated for text, translated in found.items() if text}


@pytest.mark.skipif(not shutil.which("msgfmt"), reason="missing: GNU gettext")
@pytest.mark.parametrize("catalogue", CATALOGUES, ids=str)
def test_a_catalogue_is_complete_and_compiled(fresh: Path, catalogue: Path) -> None:
    check = ["msgfmt", "--check-format", "--statistics", "--output-file", os.devnull, fresh / catalogue]
    told = subprocess.run(check, env=environment(), capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "untranslated" not in told.stderr, FORGOTTEN
    assert "fuzzy" not in told.stderr, FORGOTTEN
    compiled = catalogue.with_suffix(".mo")
    assert messages(ROOT / compiled) == messages(fresh / compiled), FORGOTTEN
