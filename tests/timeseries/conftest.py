from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from django.test import override_settings

import servers


@pytest.fixture(scope="session")
def _server_of() -> Iterator[Callable[[str], servers.Server]]:
    """A server of each kind, started when it is needed first."""
    started: dict[str, servers.Server] = {}
    with ExitStack() as stack:

        def server_of(kind: str) -> servers.Server:
            if kind not in started:
                try:
                    started[kind] = stack.enter_context(servers.redis(kind=kind))
                except servers.Missing as reason:
                    pytest.skip(f"missing: {reason}")
            return started[kind]

        yield server_of


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest, _server_of: Callable[[str], servers.Server]) -> Iterator[servers.Server]:
    """A server of each kind: the one cannot expire fields of a hash, the other can."""
    server = _server_of(request.param)
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    with override_settings(CACHES={"default": cache}):
        yield server
