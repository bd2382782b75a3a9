"""Checks of the Redis server, which is asked for its INFO."""

from __future__ import annotations

from collections.abc import Mapping

from django.core.checks import CheckMessage, Error, Warning

from ..buffer.shard import IDENTITY
from ..conf import options
from ..counters import all_counters
from ..exceptions import BufferUnavailable
from .registration import REDIS_TAG, Messages, check, id_
from .settings import is_django_redis

MINIMUM_VERSION = (6, 2)
"""Of Redis: the first with SET … PXAT."""


@check(REDIS_TAG, deploy=True)
def check_redis() -> Messages:
    """Redis is new enough, evicts nothing that is not flushed, and tells who it is."""
    if not is_django_redis(options.CACHE_ALIAS):
        return
    found: dict[str, CheckMessage] = {}  # several shards may be on one node
    try:
        for counter in all_counters():
            for buffer in counter.buffers:
                found.update((message.msg, message) for message in check_server(buffer.info()))
    except BufferUnavailable as error:
        yield Warning(f"{error}", hint="Counts are read from the database meanwhile.", id=id_("W006"))
    yield from found.values()


def check_server(info: Mapping[str, str]) -> Messages:
    """What is wrong with a server, according to its INFO."""
    if missing := [name for name in IDENTITY if not info.get(name)]:
        yield Warning(
            f"Redis does not tell its {' and '.join(missing)}, so the app may not see that a restart or a failover "
            "brought older data back.",
            hint="Allow the command INFO. If that is not possible, run `manage.py recount_counters --restored` after "
            "each restart and failover.",
            id=id_("W007"),
        )
    version = info.get("redis_version")
    if version and tuple(int(number) for number in version.split(".")[:2]) < MINIMUM_VERSION:
        minimum = ".".join(map(str, MINIMUM_VERSION))
        yield Error(
            f"Redis {version} is not supported.", hint=f"Use Redis {minimum} or newer, or Valkey.", id=id_("E012")
        )
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys") and info.get("maxmemory") != "0":
        yield Error(
            f"Redis may evict changes that are not flushed yet, because its maxmemory-policy is {policy}.",
            hint="Set maxmemory-policy to noeviction, or to one of the volatile-* policies.",
            id=id_("E013"),
        )
