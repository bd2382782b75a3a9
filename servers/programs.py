"""Where the programs of the servers are: on this system, or in Python packages that bring them along.

With SERVERS=wheels in the environment, nothing that the system has installed is found.
"""

import importlib.util
import os
import shutil
from pathlib import Path

if os.environ.get("SERVERS", "") not in ("", "wheels"):
    raise ValueError(f"SERVERS is {os.environ['SERVERS']!r}; it can only be 'wheels'.")
WHEELS_ONLY = os.environ.get("SERVERS") == "wheels"
UNLESS_HIDDEN = " (SERVERS=wheels hides what the system has)" if WHEELS_ONLY else ""


class Missing(RuntimeError):
    """There is no program for this server; the text says where it was looked for."""


def system_program(*names: str) -> Path | None:
    """The first of these programs that the system has, on PATH or where Debian puts servers."""
    if WHEELS_ONLY:
        return None
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    return next((Path(found) for name in names if (found := shutil.which(name, path=path))), None)


def packaged_program(package: str, pattern: str) -> Path | None:
    """A program inside an installed Python package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob(pattern), None)
