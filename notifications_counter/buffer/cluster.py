"""A Redis Cluster for django-redis."""

from __future__ import annotations

from threading import Lock
from typing import Any

from django_redis.pool import ConnectionFactory
from redis import RedisCluster


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """Makes a cache of django-redis live on a Redis Cluster::

        CACHES = {
            "counters": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": "redis://redis-cluster:6379",
                "OPTIONS": {"CONNECTION_FACTORY": "notifications_counter.buffer.cluster.ClusterConnectionFactory"},
            }
        }
        NOTIFICATIONS_COUNTER = {"CACHE_ALIAS": "counters", "SHARDS": 6}

    ``LOCATION`` is any node, or better a name behind which there is always one that is up; it tells the others. There
    is one client for each location in a process, with a pool of connections to each node. RedisClusterException if no
    node answers.
    """

    _clusters: dict[str, RedisCluster] = {}
    _lock = Lock()

    def get_connection(self, params: dict[str, Any]) -> RedisCluster:
        """The client of a cluster, as django-redis asks for it."""
        url = params["url"]
        with self._lock:
            if url not in self._clusters:
                self._clusters[url] = RedisCluster.from_url(**{**params, **self.pool_cls_kwargs})
            return self._clusters[url]

    def disconnect(self, connection: RedisCluster) -> None:
        """Close the connections to all nodes."""
        connection.disconnect_connection_pools()  # type: ignore[no-untyped-call]
