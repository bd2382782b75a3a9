"""What can happen to the database, and to the way there."""

import servers
from tests.backup import save_database

from . import database
from .journal import now
from .tormentor import PATIENCE, Rests, Tormentor


class DatabaseFaults(Tormentor):
    def database_failed_over(self) -> Rests:
        """To a standby that lags behind: it is promoted a moment before the primary is killed."""
        standby = self.stack.enter_context(servers.postgresql(standby_of=self.primary.port))
        yield self.chance.uniform(0.3, 1)
        with self._gone("database_failed_over"):
            written = database.written(self.primary.port)  # and with it all that readers have seen so far
            self.wait(lambda: database.has_received(standby.port, written))
            database.promote(standby.port)
            try:
                yield self.chance.uniform(0, 0.3)
            finally:
                self.primary.kill()
                database.use(standby.port)
                self.database_proxy.tell(target=standby.port)
                self.do("administrator")
        yield PATIENCE

    def database_restored(self) -> Rests:
        """From a backup, while nothing works on it."""
        yield self.chance.uniform(0.1, 0.5)
        with self._gone("database_restored"):
            restore = save_database(self.site.directory / "backup")
            yield self.chance.uniform(0.2, 1)
            self.note("the site is killed, and its database restored")
            self.kill_all()
            restore()
            self.chance.choice([self._start_and_recount, self._recount_and_start])()
        yield PATIENCE

    def _start_and_recount(self) -> None:
        """Like those who are in a hurry."""
        self.start_all()
        until = now() + self.chance.uniform(0, 0.5)
        self.wait(lambda: now() > until)
        self.do("administrator")

    def _recount_and_start(self) -> None:
        self.do("administrator")
        self.start_all()

    def database_connections_broken(self) -> Rests:
        return self._breaking(self.database_proxy, "database", 0.01)
