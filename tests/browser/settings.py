"""Settings of the demo site for tests of what its pages show, which wait for Redis, however busy the machine is."""

from demo_project.settings import *  # noqa: F403
from demo_project.settings import CACHES

CACHES["default"]["OPTIONS"] = {"SOCKET_CONNECT_TIMEOUT": 30, "SOCKET_TIMEOUT": 30}  # seconds
