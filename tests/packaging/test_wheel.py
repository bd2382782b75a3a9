"""The wheel has everything in it, and works where the source tree is not."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import servers

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "notifications_counter"
(VERSION,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
URL = "https://example.org/project"
RUNBOOK = f"{URL}/blob/v{VERSION}/docs/howto/runbook.md"
CORE = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PACKAGE.rglob("*.py")]
CORE = [name for name in CORE if name.split(".")[1] not in ("inbox", "contrib")]

# What the settings of a new project lack. It has only the core and the admin.
SETTINGS = """
DEBUG = False
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS.append("notifications_counter")
DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
OPTIONS = {"SOCKET_TIMEOUT": 30}
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "REDIS_URL", "OPTIONS": OPTIONS}}
"""

SITE = """
import sys
from importlib import import_module
import django
django.setup()
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
import notifications_counter
from notifications_counter.counters import unread
from notifications_counter.models import Notification, UserNotificationsCount

assert notifications_counter.__file__.startswith(PREFIX), notifications_counter.__file__
for name in MODULES:
    import_module(name)
call_command("migrate", verbosity=0)
call_command("check", fail_level="WARNING")
user = get_user_model().objects.create_superuser("reader")
Notification.objects.create(user=user, title="first")
client = Client()
client.force_login(user)
assert 'href="' + RUNBOOK in client.get("/admin/notifications_counter/dashboard/").content.decode()
call_command("flush_counters")
assert UserNotificationsCount.objects.get(user=user).unread_count == 1 == unread.count(user)
for page in ("", "notification/", "usernotificationscount/", "dashboard/"):
    assert client.get(f"/admin/notifications_counter/{page}").status_code == 200, page
assert not [name for name in sys.modules if name.startswith("notifications_counter.inbox")]
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `make dist` builds it, from the source package."""
    directory = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", directory, "-t"]
    environment = {**os.environ, "PROJECT_URL": URL}
    subprocess.run([*build, "sdist"], cwd=ROOT, env=environment, check=True)
    (source,) = directory.glob("*.tar.gz")
    subprocess.run(["tar", "--extract", f"--file={source}"], cwd=directory, check=True)
    subprocess.run([*build, "wheel"], cwd=str(source).removesuffix(".tar.gz"), env=environment, check=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def test_the_wheel_is_the_package_and_its_readme_links_to_the_repository(wheel: Path) -> None:
    source = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as packed:
        assert {name for name in packed.namelist() if ".dist-info/" not in name} == source
        (name,) = [name for name in packed.namelist() if name.endswith("/METADATA")]
        readme = packed.read(name).decode()
    links = re.findall(r'(?:\]\(|src="|srcset=")([^)"]+)', readme)
    assert f"{URL}/blob/v{VERSION}/docs/quickstart.md" in links
    assert f"{URL}/raw/v{VERSION}/docs/images/inbox.png" in links
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_core_of_the_wheel_works_without_the_source_and_the_inbox(wheel: Path, tmp_path: Path) -> None:
    prefix = str(tmp_path / "packages")  # comes before the source tree
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", prefix, wheel]
    subprocess.run(install, check=True)
    environment = {"DJANGO_SETTINGS_MODULE": "mysite.settings", "PATH": "/usr/bin:/bin", "PYTHONPATH": prefix}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    with servers.redis() as redis:
        subprocess.run([sys.executable, "-m", "django", "startproject", "mysite", "."], check=True, **options)
        with (tmp_path / "mysite" / "settings.py").open("a") as settings:
            settings.write(SETTINGS.replace("REDIS_URL", redis.url))
        values = {"PREFIX": repr(prefix), "MODULES": repr(CORE), "RUNBOOK": repr(RUNBOOK)}
        site = re.sub("|".join(values), lambda name: values[name[0]], SITE)
        (tmp_path / "run.py").write_text(site)
        run = subprocess.run([sys.executable, "run.py"], **options)
    assert run.returncode == 0, run.stdout + run.stderr
