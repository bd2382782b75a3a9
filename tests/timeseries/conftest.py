from collections.abc import Iterator

import pytest
from django.test import override_settings

import servers


@pytest.fixture(scope="session", params=["redis", "valkey"])
def _server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    try:
        with servers.redis(kind=request.param) as server:
            yield server
    except servers.Missing as reason:
        pytest.skip(f"missing: {reason}")


@pytest.fixture
def server(_server: servers.Server) -> Iterator[servers.Server]:
    """A server of each kind: the one cannot expire fields of a hash, the other can."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": _server.url}
    with override_settings(CACHES={"default": cache}):
        yield _server
