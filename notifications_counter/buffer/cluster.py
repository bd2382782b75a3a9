"""A Redis Cluster: its connection factory for django-redis, and its client."""

from __future__ import annotations

import time
from collections import defaultdict
from threading import Lock
from typing import Any

from django_redis.pool import ConnectionFactory
from redis import RedisCluster

from ..conf import options
from ..exceptions import BufferUnavailable, CommandRefused
from ..internals import disconnect_nodes, new_cluster, node_pool, pool_options, reload_nodes
from . import errors
from .breaker import Breaker
from .client import Client
from .patience import limit
from .pipeline import AnyCall


class NodeBreaker(Breaker):
    """The breaker of one node. The cluster's breaker logs for all nodes."""

    def __init__(self, cluster: Cluster):
        super().__init__(cluster.alias)
        self._cluster = cluster
        self.refused_commands = cluster.breaker.refused_commands

    def trip(self, error: Exception) -> BufferUnavailable:
        """Note a failure of this node."""
        self.down_since = time.monotonic()
        self.retry_at = self.down_since + options.RETRY_AFTER
        self.has_run.clear()
        return self._cluster.breaker.trip(error)

    def note_refusal(self, error: Exception, name: str) -> CommandRefused:
        """Note that this node will never run a command or script, although another one may have run it."""
        self._cluster.forget_what_has_run()
        return super().note_refusal(error, name)

    def reset(self) -> str | None:
        """Note that this node, or its replacement, answers again. The outage ends when no node is down."""
        self.down_since, self.refuses_writes = None, False
        return None if self._cluster.has_node_down() else self._cluster.breaker.reset()


class Node(Client):
    """The client of one node. Only a node that failed is left alone for a while."""

    def __init__(self, cluster: Cluster):
        super().__init__(cluster.alias)
        self.breaker = NodeBreaker(cluster)
        self._cluster = cluster
        self._pool: Any = None  # of redis-py, which makes another one when the cluster changes

    def pool(self, key: str) -> Any:
        """Return the connections to this node."""
        if self.breaker.down_since is not None:  # another node may have replaced it
            reload_nodes(self._cluster.redis)
        pool = node_pool(self._cluster.redis, key)
        if pool is not self._pool:
            self._pool, self._connections = pool, self._connections_of(pool)
        return self._connections

    def refused(self, error: Exception, call: AnyCall) -> BufferUnavailable:
        """Note a refusal. If the key has moved, find out where all keys are now."""
        if not isinstance(error, errors.MovedError):
            return super().refused(error, call)
        try:
            reload_nodes(self._cluster.redis)
        except errors.FAILURES as failure:
            return self.breaker.trip(failure)
        return BufferUnavailable(f"Redis (cache {self.alias!r}) refused: {error}")


class Cluster(Client):
    """The client of a cluster. Sends each command to the node that holds its key. An outage lasts until no node is
    down."""

    knows_server = False

    def __init__(self, alias: str):
        super().__init__(alias)
        self._nodes: dict[str, Node] = defaultdict(lambda: Node(self))
        self._nodes[""].knows_server = False

    def close_idle(self) -> None:
        """Close the connections that nobody uses."""
        for node in list(self._nodes.values()):
            node.close_idle()

    def forget_what_has_run(self) -> None:
        for node in list(self._nodes.values()):
            node.breaker.has_run.clear()

    def has_node_down(self) -> bool:
        return any(node.breaker.down_since is not None for node in list(self._nodes.values()))

    def node_of(self, key: str) -> Node:
        """Return the node that holds ``key``; a placeholder until redis-py's client exists, because making that asks
        the cluster."""
        try:
            return self._nodes[self.__dict__["redis"].get_node_from_key(key).name]
        except (KeyError, *errors.FAILURES):
            return self._nodes[""]


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """A connection factory for a cache of django-redis on a Redis Cluster::

        CACHES = {
            "counters": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": "redis://redis-cluster:6379",
                "OPTIONS": {"CONNECTION_FACTORY": "notifications_counter.buffer.cluster.ClusterConnectionFactory"},
            }
        }
        NOTIFICATIONS_COUNTER = {"CACHE_ALIAS": "counters", "SHARDS": 6}

    ``LOCATION`` is any node, or better a host name that always leads to one that is up. The app learns of the others
    from it. Each process has one client for each location, with a pool of connections to each node.
    RedisClusterException if no node answers.
    """

    client_class = Cluster

    _clusters: dict[str, RedisCluster] = {}
    _lock = Lock()

    def get_connection(self, params: dict[str, Any]) -> RedisCluster:
        """Return the client of a cluster. django-redis calls this."""
        url = params["url"]
        with self._lock:
            if url not in self._clusters:
                self._clusters[url] = new_cluster(seconds=limit, **{**params, **pool_options(self)})
            return self._clusters[url]

    def disconnect(self, connection: RedisCluster) -> None:
        """Close the connections to all nodes."""
        disconnect_nodes(connection)
