"""Real servers for the demo, the tests and the benchmarks, each in its own directory and on a free loopback port.

    with servers.redis("--appendonly", "yes") as server:
        redis.Redis.from_url(server.url).ping()
        server.kill()
        server.start()  # same port, same data

A server answers when its block begins. When the block ends, the server and its directory are removed, even if this
process is killed before. If there is no program for a server, `Missing` says which places were searched. On Linux, a
server dies with the *thread* that started it, so start servers from a thread that stays.
"""

from .databases import mariadb, mysql, pgbouncer, postgresql  # noqa: F401
from .redis_server import redis, redis_cluster, redis_sentinel  # noqa: F401
from .server import HOST, Missing, Server, dies_with_parent, find_program, free_port, temporary_directory  # noqa: F401
