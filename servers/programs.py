"""Finds the programs of the servers, on this system or in Python packages that contain them.

With SERVERS=wheels in the environment, it ignores those of the system.
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
    """There is no program for this server. The text says which places were searched."""


def system_program(*names: str) -> Path | None:
    """Return the first of these programs on PATH or where Debian installs servers, or None."""
    if WHEELS_ONLY:
        return None
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    return next((Path(found) for name in names if (found := shutil.which(name, path=path))), None)


def packaged_program(package: str, pattern: str) -> Path | None:
    """Return a program inside an installed Python package, or None."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob(pattern), None)
