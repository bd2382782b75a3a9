"""Connects a cache of django-redis to a Redis Cluster."""

from __future__ import annotations

from typing import Any

from django_redis.pool import ConnectionFactory
from redis import RedisCluster
from redis.backoff import NoBackoff
from redis.retry import Retry


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """A connection factory for a cache of django-redis on a Redis Cluster::

        CACHES = {
            "counters": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": "redis://redis-cluster:6379",
                "OPTIONS": {
                    "CONNECTION_FACTORY": "notifications_counter.contrib.redis_cluster.ClusterConnectionFactory",
                },
            }
        }
        NOTIFICATIONS_COUNTER = {"CACHE_ALIAS": "counters"}

    ``LOCATION`` is any node, or better a host name that always leads to one that is up. The app learns of the others
    from it. Each process has one client for each location, with a pool of connections to each node.
    RedisClusterException if no node answers.
    """

    _clusters: dict[str, RedisCluster] = {}

    def get_connection(self, params: dict[str, Any]) -> RedisCluster:
        """Return the client of a cluster. django-redis calls this."""
        url = params["url"]
        if (cluster := self._clusters.get(url)) is None:
            # A call that was sent twice could count twice.
            arguments = {"retry": Retry(NoBackoff(), 0), **params, **self.pool_cls_kwargs}
            # Without a lock: a handler of a signal, or a fork meanwhile, would wait for it forever.
            cluster = self._clusters.setdefault(url, RedisCluster.from_url(**arguments))
        return cluster

    def disconnect(self, connection: Any) -> None:
        """Close the connections to all nodes."""
        connection.disconnect_connection_pools()
