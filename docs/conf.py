"""The documentation as a site: `make docs`.

The same Markdown is read on GitHub. What only GitHub understands is translated here, so that no page needs to know of
two readers: the lists of links in index.md become the menu, a `<picture>` follows the theme of the site, and docstrings
are part of the page about the Python API.
"""

import re
import sys
from pathlib import Path

import django
from django.conf import settings
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img src="(?P<light>[^"]+)"[^>]*? width="(?P<width>\d+)" alt="(?P<alt>[^"]+)">\s*</picture>'
)

DOCSTRINGS = """\
```{eval-rst}
.. autoclass:: notifications_counter.counters.Counter
   :members:
.. autoclass:: notifications_counter.upkeep.findings.Result
.. autoclass:: notifications_counter.upkeep.findings.Difference
.. autoclass:: notifications_counter.models.Notification
   :members: is_read, safe_url, mark_as_seen, mark_as_read, mark_as_unread
.. autoclass:: notifications_counter.models.NotificationQuerySet
   :members:
.. autoclass:: notifications_counter.inbox.controller.NotificationController
   :members:
.. autofunction:: notifications_counter.inbox.paging.page_of
.. autoclass:: notifications_counter.inbox.paging.Page
   :members:
.. autoclass:: notifications_counter.recipes.Recipe
.. automodule:: notifications_counter.timeseries
   :members: TimeSeries, CleanResult
.. automodule:: notifications_counter.events
   :members: EventLog
.. autofunction:: notifications_counter.monitoring.status.read_status
.. autoclass:: notifications_counter.monitoring.status.Status
   :members:
.. autoclass:: notifications_counter.monitoring.status.CounterStatus
   :members:
.. autoclass:: notifications_counter.monitoring.status.Problem
```
"""
"""What the site adds to the page about the Python API."""

sys.path.insert(0, str(ROOT))
settings.configure(
    INSTALLED_APPS=[
        "notifications_counter",
        "notifications_counter.inbox",
        "django.contrib.auth",
        "django.contrib.contenttypes",
    ],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

# Pages outside of docs/, such as CHANGELOG.md, are part of the site, so links to them work here and on GitHub.
project = "notifications_counter"
html_title = "notifications counter"  # may wrap
copyright = "the notifications_counter developers"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**"]
exclude_patterns = [".*", "build", "dist"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]

html_theme = "furo"
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88

# A link that leads nowhere is an error. Types in signatures are not links: those of Python and Django are other sites.
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]


def menu(page: str) -> str:
    """The links of each section of a page, as an entry of the menu."""
    menus = []
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE):
        entries = [f"{name} <{path}>" for name, path in re.findall(r"\[(.+?)\]\((.+?)\.md\)", text)]
        menus += ["", "```{toctree}", ":hidden:", f":caption: {title}", *entries, "```"]
    return "\n".join(menus)


def adapt(app: Sphinx, name: str, source: list[str]) -> None:
    """Translate what only GitHub understands."""
    source[0] = PICTURE.sub(
        r"![\g<alt>](\g<light>){.only-light width=\g<width>} "
        r"![\g<alt>](\g<dark>){.only-dark width=\g<width>}",
        source[0],
    )
    if name == root_doc:
        source[0] += menu(source[0])
    if name == "docs/reference/api":
        source[0] += f"\n{DOCSTRINGS}"


def lay_out(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Keep the columns and the indented code of a docstring."""
    text = re.sub(r"^(?=``.+``  )", "| ", "\n".join(lines), flags=re.MULTILINE)
    lines[:] = text.replace("\n\n    ", "\n\n::\n\n    ").split("\n")


def redirect(app: Sphinx, exception: Exception | None) -> None:
    """Send visitors of the site's root to its first page."""
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">'
    (app.outdir / "index.html").write_text(page)


def setup(app: Sphinx) -> None:
    app.connect("source-read", adapt)
    app.connect("autodoc-process-docstring", lay_out)
    app.connect("build-finished", redirect)
