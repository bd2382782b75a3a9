"""No password is told by a message, a log or a traceback."""

import re
import traceback
from urllib.parse import quote

import pytest
import redis.sentinel

import servers
from notifications_counter.caches import reason_of
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.redis.calls import command
from notifications_counter.redis.client import client_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

SECRET = "hunt3r/two"


@pytest.mark.parametrize("where", ["LOCATION", "OPTIONS"])
def test_a_server_that_repeats_a_password(use, caplog, where):
    """As servers do that don't know a command."""
    options = {"CONNECTION_POOL_KWARGS": {"protocol": 3}}
    credentials = f":{quote(SECRET, safe='')}@" if where == "LOCATION" else ""
    if where == "OPTIONS":
        options["PASSWORD"] = SECRET
    with servers.redis("--rename-command", "HELLO", "", "--rename-command", "AUTH", "") as server:
        use(server.url.replace("://", f"://{credentials}"), **options)
        with pytest.raises(BufferUnavailable) as caught:
            client_of("default").ask(command("GET", "key"))
    logged = [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    said = "".join([*traceback.format_exception(caught.value), *logged])
    assert "unknown command" in said
    assert "redis_" in said
    assert SECRET not in said
    assert quote(SECRET, safe="") not in said


def test_a_sentinel_that_is_down(monkeypatch):
    """Redis-py 6 and 7 show all arguments of its client, other versions none or some."""
    monkeypatch.setattr(redis.ConnectionPool, "__repr__", lambda pool: f"<redis.Pool({pool.connection_kwargs})>")
    sentinels = [(servers.HOST, servers.free_port()) for _ in range(2)]
    with pytest.raises(redis.sentinel.MasterNotFoundError, match=SECRET) as caught:
        redis.sentinel.Sentinel(sentinels, sentinel_kwargs={"password": SECRET}).discover_master("one")
    assert re.fullmatch(r"No master found for 'one' : \*\*\* - .*ConnectionError.*", reason_of(caught.value))
    assert SECRET not in reason_of(caught.value)


def test_a_url_where_the_name_of_a_cache_belongs(caplog):
    url = f"redis://:{SECRET}@localhost:6379/1"
    with pytest.raises(BufferUnavailable) as caught:
        client_of(url).ask(command("GET", "key"))
    said = f"{caught.value} {caplog.text} {[vars(record) for record in caplog.records]}"
    assert "Set NOTIFICATIONS_COUNTER['CACHE_ALIAS'] to an entry of CACHES" in said
    assert SECRET not in said
