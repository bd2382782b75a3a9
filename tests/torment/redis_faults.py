"""What can happen to Redis, and to the way there."""

import time
from typing import Any

import redis

import servers

from .processes import ROLES
from .tormentor import PATIENCE, Rests, Tormentor, start_redis

HARMFUL = {"intents", "in_flight"}
"""Kinds of keys without which a read may be wrong until the next run of a flusher."""


class RedisFaults(Tormentor):
    is_void = False

    def redis_restarted_empty(self) -> Rests:
        while True:
            yield self.chance.uniform(0.2, 0.8)
            yield from self._restart("empty")

    def redis_restarted_with_aof(self) -> Rests:
        """It keeps what it has acknowledged. With "everysec", it would reply to writes that wait for a sync, too."""
        with self._client() as client:
            client.config_set("appendfsync", "always")
            client.config_set("appendonly", "yes")
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.01)
        self.server.command += ["--appendonly", "yes", "--appendfsync", "always"]
        while True:
            yield self.chance.uniform(0.2, 0.8)
            yield from self._restart("with_aof", loses=False)

    def redis_restarted_with_old_rdb(self) -> Rests:
        while True:
            yield self.chance.uniform(0.1, 0.4)
            with self._client() as client:
                client.save()
            self.note("Redis saves its data")
            yield self.chance.uniform(0.1, 0.4)
            yield from self._restart("with_old_rdb")

    def _restart(self, how: str, loses: bool = True) -> Rests:
        with self._gone(f"redis_restarted_{how}", loses):
            self.server.kill()
            try:
                yield self.chance.uniform(0, 0.3)
            finally:
                self.server.start()

    def redis_failed_over(self) -> Rests:
        """To a replica that lags behind: it is cut off from its master a moment before that is killed."""
        while True:
            replica = self.stack.enter_context(start_redis(self.server))
            yield self.chance.uniform(0.1, 0.4)
            with redis.Redis(port=replica.port) as client:
                client.replicaof("NO", "ONE")
            yield self.chance.uniform(0, 0.3)
            with self._gone("redis_failed_over"):
                self.server.kill()
                try:
                    yield self.chance.uniform(0, 0.3)
                finally:
                    self.server = replica
                    self.proxy.tell(target=replica.port)

    def redis_failed_over_and_back(self) -> Rests:
        """To a replica that lags behind, and back to the first server, which was never restarted."""
        other = self.stack.enter_context(start_redis(self.server))
        while True:
            yield self.chance.uniform(0.1, 0.4)
            with self._gone("redis_failed_over_and_back"):
                for _ in range(2):
                    try:
                        yield from self._swap(other)
                    finally:
                        self.server, other = other, self.server
                        self.proxy.tell(target=self.server.port)

    def _swap(self, replica: servers.Server) -> Rests:
        """Promote the replica, a moment before the master follows it."""
        with redis.Redis(port=replica.port) as after, self._client() as before:
            while after.info("replication").get("master_link_status") != "up":
                time.sleep(0.01)  # the round may end at a yield, and the caller takes the replica for promoted
            after.replicaof("NO", "ONE")
            try:
                yield self.chance.uniform(0, 0.2)
            finally:
                before.replicaof(servers.HOST, replica.port)

    def redis_keys_deleted(self) -> Rests:
        """One at a time."""
        while True:
            yield self.chance.uniform(0.05, 0.2)
            with self._client() as client:
                kinds: dict[str, list[bytes]] = {}
                for key in sorted(client.keys("*unread:*")):
                    kinds.setdefault(kind_of(key), []).append(key)
                if not kinds:  # nobody has written since the last one was deleted
                    continue
                kind = self.chance.choice(list(kinds))
                with self._gone(f"redis_key_deleted:_{kind}", loses=kind in HARMFUL):
                    client.delete(self.chance.choice(kinds[kind]))

    def sentinel_failed_over(self) -> Rests:
        """The master is killed; once a sentinel has replaced it, it comes back as a replica."""
        yield self.chance.uniform(0.3, 0.6)
        with self._gone("sentinel_failed_over"):
            self.server.kill()
            master = self._master()
            self.is_void = master["port"] != self.server.port or master["is_sdown"]  # it was given up while it lived
            try:
                while self._master()["port"] == self.server.port:
                    yield 0.02
            finally:
                while self._master()["port"] == self.server.port:
                    time.sleep(0.02)
                self.server, self.replica = self.replica, self.server
        self.replica.command += ["--replicaof", servers.HOST, str(self.server.port)]  # a sentinel takes longer
        self.replica.start()
        yield PATIENCE

    def _master(self) -> dict[str, Any]:
        """What the sentinel says of the master."""
        (master,) = self.sentinel.sentinel_masters().values()
        return master

    def had_two_masters(self) -> bool:
        """Whether a sentinel, on a busy machine, took a master for dead that was not. No Redis is exact then."""
        if "sentinel_failed_over" not in self.faults:
            return False
        return self.is_void or self._master()["config-epoch"] > self.survived["sentinel_failed_over"]

    def redis_stalled(self) -> Rests:
        """It answers late, when clients have given up."""
        while True:
            yield self.chance.uniform(0.2, 0.6)
            with self._gone("redis_stalled", loses=False):
                self.server.pause()
                try:
                    yield self.chance.uniform(0.3, 0.8)
                finally:
                    self.server.resume()

    def _client(self) -> redis.Redis:
        return redis.Redis(port=self.server.port)

    def connections_broken(self) -> Rests:
        return self._breaking(self.proxy, "redis", 0.03)

    def connections_refused(self) -> Rests:
        """Some have no way to Redis, others have."""
        while True:
            yield self.chance.uniform(0.1, 0.5)
            cut_off = self.chance.sample(list(ROLES), self.chance.randint(1, 2))
            self.note(f"Redis is out of reach of {cut_off}")
            with self._gone("redis_out_of_reach_of_some", loses=False):
                self.proxy.tell(shut=cut_off)
                try:
                    yield self.chance.uniform(0.1, 0.8)
                finally:
                    self.proxy.tell(shut=[])


def kind_of(key: bytes) -> str:
    """Like "pending" or "total". The id of the database stands before it, but for the key that tells this id."""
    first, second, *_ = key.decode().partition("}:")[2].split(":")
    return first if first == "database" else second
