"""A check for django-health-check 4 (the extra `health`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

from asgiref.sync import sync_to_async
from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable, ServiceWarning

from ..exceptions import CounterError
from ..monitoring.status import read_status, sentences
from ..upkeep.flush import MAX_AGE_SECONDS


@dataclass
class Counters(HealthCheck):  # type: ignore[misc]
    """A check that fails if anything is wrong with a counter, as `flush_counters --check` does. Work may wait for
    ``max_age`` seconds.

    A problem is only a warning, because counts are right all the same. If Redis or a database is unreachable, the
    service is unavailable. The reason, which may name hosts and users, is only in the log of health_check.
    """

    max_age: float = MAX_AGE_SECONDS
    timeout: timedelta = field(default=timedelta(seconds=10), repr=False)

    async def run(self) -> None:
        """ServiceWarning or ServiceUnavailable if anything is wrong."""
        # In the request's thread, whose database connection is closed at the end of the request.
        await sync_to_async(self._run)()

    def _run(self) -> None:
        status = read_status(max_age=self.max_age)
        told = " ".join(sentences(replace(problem, reason="") for problem in status.problems))
        if any(counter.error for counter in status.counters.values()):
            raise ServiceUnavailable(told) from CounterError(*sentences(status.problems))
        if told:
            raise ServiceWarning(told)
