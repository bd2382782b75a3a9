from collections.abc import Callable, Iterator
from typing import Any

import pytest

import servers


@pytest.fixture(scope="session", params=["redis", "valkey"])
def _server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    try:
        with servers.redis(kind=request.param) as server:
            yield server
    except servers.Missing as reason:
        pytest.skip(f"missing: {reason}")


@pytest.fixture
def server(_server: servers.Server, use: Callable[..., Any]) -> servers.Server:
    """A server of each kind: the one cannot expire fields of a hash, the other can."""
    use(_server.url)
    return _server
