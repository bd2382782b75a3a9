"""Imports point one way: down the layers, and never in a circle. Django loads little of the app when it starts."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest
from django.conf import settings

from .source import PACKAGE, trees

pytestmark = pytest.mark.once

# Top first. A module may import from its own layer and from those below it.
LAYERS = """
    inbox
    admin apps management contrib testing migrations
    monitoring checks
    tasks
    counters
    upkeep
    reader
    writes
    timeseries events sql
    declaration
    databases
    models
    buffer
    caches
    conf exceptions signals internals
"""
LEVEL = {name: level for level, line in enumerate(reversed(LAYERS.strip().splitlines())) for name in line.split()}

MODULES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items() if name != "__init__"}


def imports(module: str, tree: ast.AST) -> set[str]:
    """Our modules that the code of a module imports, at the top or inside a function."""
    package = ["notifications_counter", *module.split(".")]
    if MODULES[module].name != "__init__.py":
        package.pop()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*start, *filter(None, [node.module])])
            names = {f"{source}.{alias.name}" for alias in node.names}
            found |= {name if ours(name) in MODULES else source for name in names}
    return {ours(name) for name in found} & MODULES.keys()


def ours(name: str) -> str:
    return name.removeprefix("notifications_counter.")


def tree(module: str) -> ast.AST:
    return trees()[str(MODULES[module].relative_to(PACKAGE))]


@cache
def arrows() -> dict[str, set[str]]:
    """What each module imports."""
    return {name: imports(name, tree(name)) for name in MODULES}


def level(module: str) -> int:
    return LEVEL[module.split(".")[0]]


def test_every_module_has_a_layer():
    assert {name.split(".")[0] for name in MODULES} == LEVEL.keys()


def test_no_import_points_up():
    up = [f"{one} -> {other}" for one, others in arrows().items() for other in others if level(other) > level(one)]
    assert not up


def test_no_imports_form_a_cycle():
    try:
        TopologicalSorter(arrows()).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_no_import_is_hidden_from_the_interpreter():
    hidden = [
        f"{name} -> {other}"
        for name in MODULES
        for node in ast.walk(tree(name))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for other in imports(name, ast.Module(node.body, []))
    ]
    assert not hidden


# What every site needs. Anything else, and redis-py, is for the first process that uses it to load.
AT_START = """
    apps buffer caches checks conf counters databases declaration events exceptions internals models reader signals
    sql timeseries upkeep writes
"""

START = """
import sys
import django
from django.conf import settings

settings.configure(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", *sys.argv[1:]],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://"}})
django.setup()
print(*sys.modules)
"""


def loaded(*apps: str) -> set[str]:
    """The modules that django.setup() loads on a site with these apps."""
    start = [sys.executable, "-c", START, *apps]
    return set(subprocess.run(start, cwd=PACKAGE.parent, capture_output=True, text=True, check=True).stdout.split())


def test_what_django_loads_at_the_start():
    mine = {name for name in loaded("notifications_counter") if name.startswith("notifications_counter.")}
    assert {ours(name).split(".")[0] for name in mine} == set(AT_START.split())


# A site that has only the core: every module of it, the admin, and what a counter does.
CORE_ONLY = """
import sys
from importlib import import_module

import django
from django.conf import settings

names, redis, prefix = sys.argv[1].split(), sys.argv[2], sys.argv[3]
admin = [f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "messages", "sessions")]
middleware = ["sessions.middleware.SessionMiddleware", "auth.middleware.AuthenticationMiddleware",
    "messages.middleware.MessageMiddleware"]
processors = [f"django.{name}" for name in ("template.context_processors.request",
    "contrib.auth.context_processors.auth", "contrib.messages.context_processors.messages")]
settings.configure(
    INSTALLED_APPS=["notifications_counter", *admin], MIDDLEWARE=[f"django.contrib.{name}" for name in middleware],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis,
        "OPTIONS": {"SOCKET_TIMEOUT": 30}}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
        "OPTIONS": {"context_processors": processors}}],
    NOTIFICATIONS_COUNTER={"DEPLOY_SECONDS": 0, "KEY_PREFIX": prefix}, ALLOWED_HOSTS=["*"], SECRET_KEY="x",
    ROOT_URLCONF="__main__", STATIC_URL="static/", USE_TZ=True)
django.setup()

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
for name in names:
    import_module(f"notifications_counter.{name}")
call_command("check", fail_level="WARNING")
call_command("migrate", verbosity=0)

from notifications_counter import tasks
from notifications_counter.counters import unread
from notifications_counter.models import Notification, UserNotificationsCount

user = get_user_model().objects.create_superuser("anna")
Notification.objects.create(user=user, title="x")
assert unread.count(user) == 1
tasks.flush()
assert UserNotificationsCount.objects.get(user=user).unread_count == 1
client = Client()
client.force_login(user)
for page in ("", "notification/", "usernotificationscount/", "dashboard/"):
    assert client.get(f"/admin/notifications_counter/{page}").status_code == 200, page
unread.invalidate()
print(*sys.modules)
"""


def test_a_site_without_the_inbox(child_environment):
    """Nothing in the core needs it, or imports it."""
    names = [name for name in MODULES if name.split(".")[0] not in ("inbox", "contrib")]
    prefix = child_environment["TEST_KEY_PREFIX"]
    arguments = [" ".join(names), settings.CACHES["default"]["LOCATION"], prefix]
    site = subprocess.run(
        [sys.executable, "-c", CORE_ONLY, *arguments], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert site.returncode == 0, site.stderr
    assert not [name for name in site.stdout.split() if name.startswith("notifications_counter.inbox")]


def test_a_module_fits_on_a_few_screens() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
