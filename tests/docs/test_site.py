"""The documentation builds as a site, without a warning. One test, because building takes seconds."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.test_docs import PAGES, ROOT

pytestmark = [pytest.mark.once, pytest.mark.slow]


def test_the_site(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", ".", site]
    run = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert menu(site) == {built(site, page) for page in PAGES if page != ROOT / "docs" / "index.md"}
    assert_links_lead_to_files(site)
    assert_pictures_follow_the_theme(site)
    assert "Return the counter of this name." in built(site, ROOT / "docs" / "reference" / "api.md").read_text()
    assert "flush_counters" in (site / "searchindex.js").read_text()


def built(site: Path, page: Path) -> Path:
    return (site / page.relative_to(ROOT)).with_suffix(".html")


def menu(site: Path) -> set[Path]:
    start = built(site, ROOT / "docs" / "index.md")
    (tree,) = re.findall(r'<div class="sidebar-tree">(.*?)\n</div>', start.read_text(), re.DOTALL)
    return {(start.parent / link).resolve() for link in re.findall(r'href="([^"#]+)"', tree)}


def assert_links_lead_to_files(site: Path) -> None:
    pages = [site / "index.html", *(built(site, page) for page in PAGES)]
    links = {
        (page.parent / unquote(link)).resolve()
        for page in pages
        for link in re.findall(r'(?:href|src|url)="?([^":#?]+)[^":]*"', page.read_text())
    }
    assert site / "docs" / "index.html" in links
    assert not [link for link in links if not link.is_file()]


def assert_pictures_follow_the_theme(site: Path) -> None:
    pictures = re.findall(r'<img [^>]*?class="([^"]+)"[^>]*src="([^"]+)"', built(site, ROOT / "README.md").read_text())
    assert ("only-light", "_images/inbox.png") in pictures
    assert ("only-dark", "_images/inbox-dark.png") in pictures
