"""An exception that is meant for the site, such as a time limit, strikes at any line: it comes out, and counts heal."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models.functions import Now

import notifications_counter
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.redis.client import read_all_owed
from notifications_counter.writes.ledger import Ledger
from tests.support import PATIENCE, assert_heals, create, entries, rows

from .test_transactions import by_hand

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]

CODE = (str(Path(notifications_counter.__file__).parent), redis.connection.__file__)
objects = Notification.objects


class TimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded: anything that catches Exception swallows it."""


class Interrupt(BaseException):
    """As KeyboardInterrupt, or gevent's Timeout."""


@contextmanager
def strike(line: int, error: BaseException) -> Iterator[list[str]]:
    """Raise the exception at the first run of that many different lines. Yields where, once that has happened.

    A function that is called from two others has its lines twice. At its end, a ``with`` block runs its first line
    again, where Python would forget to call ``__exit__()``, and therefore handles no signals.
    """
    before, place, seen = sys.gettrace(), [], set()
    gc.disable()  # Python swallows what a finalizer raises

    def trace_lines(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen.add((frame.f_code, frame.f_lineno, frame.f_back and frame.f_back.f_code))
            if len(seen) == line and not place:
                while frame is not None and frame.f_code.co_filename != __file__:
                    place.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
                    frame = frame.f_back
                raise error  # Python then ends the tracing
        return trace_lines

    def trace_calls(frame: FrameType, *_: Any) -> Any:
        called_by = {frame.f_code.co_name, frame.f_back and frame.f_back.f_code.co_name}
        if place or "__del__" in called_by or not frame.f_code.co_filename.startswith(CODE):
            return None
        return trace_lines

    sys.settrace(trace_calls)
    try:
        yield place
    finally:
        sys.settrace(before)
        gc.enable()


def transact(user: Any) -> None:
    with transaction.atomic():
        create(user)
        objects.filter(user=user).update(read_at=Now())
        create(user)


def catch_and_commit(user: Any) -> None:
    """Django refuses to commit after an error in a block. It must also if it has not seen the error."""
    with transaction.atomic():
        error = None
        try:
            objects.create(user=user, title="x")
        except BaseException as caught:
            error = caught
        if error is None:
            return
    raise error


def commit_by_hand(user: Any) -> None:
    """Without autocommit, a site may well commit after an error."""
    with by_hand("autocommit off", "COMMIT"):
        objects.filter(user__username=user.username).update(read_at=Now())


def read(user: Any) -> None:
    unread.count(user)
    unread.counts([user])


def connect(user: Any) -> None:
    """redis-py puts a connection back into the pool on which replies to its own commands are still to come."""
    read_all_owed()
    unread.buffer.client.redis.connection_pool.disconnect()
    read(user)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (transact, TimeLimit),
        (catch_and_commit, Interrupt),
        (commit_by_hand, TimeLimit),
        (read, Interrupt),
        (connect, TimeLimit),
    ],
)
def test_an_exception_at_any_line(use, server, act: Callable[[Any], None], kind: type[BaseException]):
    """The reply to a confirmation may be owed. It is never read as the reply to another command."""
    use(server.url)  # a pool of its own: its lock may stay locked
    unread.heal()
    users: list[Any] = []
    places: dict[Any, str] = {}
    while True:
        user = get_user_model().objects.create_user(username=f"u{len(users)}")
        users.append(user)
        objects.create(user=user, title="first")
        assert unread.count(user) == 1  # cached
        error = kind(f"at line {len(users)}")
        caught: BaseException | None = None
        try:
            with strike(len(users), error) as place:
                act(user)
        except BaseException as raised:
            caught = raised
        if not place:
            assert caught is None
            break
        places[user.pk] = place[0]
        seen = caught  # the exception, or one that was raised while it was handled
        while seen is not None and seen is not error:
            seen = seen.__cause__ or seen.__context__
        assert seen is not None, f"swallowed at {place[0]}: {caught!r}"
        del caught, error, seen
        assert {type(each) for each in connection.execute_wrappers} <= {Ledger}, place[0]
        connection.close_if_unusable_or_obsolete()  # as at the end of a request: what was not sent by now is lost
        for each in (user, users[0]):
            assert unread.count(each) == rows(each), place[0]
        objects.create(user=user, title="after")
    assert len(users) > 20
    with entries(HEAL_AFTER=0):
        unread.heal(PATIENCE)
    unread.flush()
    right, found = {user.pk: rows(user) for user in users}, unread.counts(users)
    assert not {places.get(key): (found[key], right[key]) for key in right if found[key] != right[key]}
    assert_heals(*users)
