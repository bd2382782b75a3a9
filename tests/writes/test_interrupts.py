"""An exception that is meant for the site, such as a time limit, strikes at any line: it comes out, and counts heal."""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import InterfaceError, connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now

import notifications_counter
from notifications_counter.buffer.client import client_of
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import PATIENCE, assert_heals, entries, rows

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]

PACKAGE = str(Path(notifications_counter.__file__).parent)
objects = Notification.objects


class TimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded: anything that catches Exception swallows it."""


class Interrupt(BaseException):
    """As KeyboardInterrupt, or gevent's Timeout."""


class Undone(Exception):
    pass


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
        if place or "__del__" in called_by or not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        return trace_lines

    sys.settrace(trace_calls)
    try:
        yield place
    finally:
        sys.settrace(before)
        gc.enable()


def create(user: Any) -> None:
    objects.create(user=user, title="x")


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
            create(user)
        except BaseException as caught:
            error = caught
        if error is None:
            return
    raise error


def roll_back_a_savepoint(user: Any) -> None:
    with transaction.atomic():
        create(user)
        try:
            with transaction.atomic():
                create(user)
                raise Undone
        except (Undone, TimeLimit, Interrupt) as error:
            caught = error
        if not connection.needs_rollback:
            create(user)
    if not isinstance(caught, Undone):
        raise caught


def commit_by_hand(user: Any) -> None:
    """Without autocommit, a site may well commit after an error."""
    transaction.set_autocommit(False)
    try:
        objects.filter(user__username=user.username).update(read_at=Now())
    finally:
        try:
            transaction.commit()
        finally:
            transaction.set_autocommit(True)


def write_without_redis(user: Any) -> None:
    breaker = client_of("default").breaker
    breaker.down_since, breaker.retry_at = time.monotonic(), time.monotonic() + 60
    try:
        transact(user)
    finally:
        breaker.down_since = None


def read(user: Any) -> None:
    unread.count(user)
    unread.counts([user])


@pytest.fixture
def one_connection(use, settings) -> Iterator[None]:
    """The site allows only one connection to Redis. If it is not given back, the next command fails."""
    use(settings.CACHES["default"]["LOCATION"], CONNECTION_POOL_KWARGS={"max_connections": 1})
    with entries(RECORD_ACTIVITY=True):
        unread.heal()
        yield


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(
    ("pool", "act", "kind"),
    [
        ("one_connection", create, Interrupt),
        ("one_connection", catch_and_commit, Interrupt),
        ("one_connection", roll_back_a_savepoint, Interrupt),
        ("one_connection", commit_by_hand, TimeLimit),
        ("one_connection", write_without_redis, TimeLimit),
        ("one_connection", read, Interrupt),
        # Here, the reply to a confirmation is owed. It is never read as the reply to another command.
        ("healed", create, Interrupt),
        ("healed", transact, TimeLimit),
        ("healed", read, Interrupt),
    ],
)
def test_an_exception_at_any_line(
    request: pytest.FixtureRequest, pool: str, act: Callable[[Any], None], kind: type[BaseException]
):
    request.getfixturevalue(pool)
    users: list[Any] = []
    places: dict[Any, str] = {}
    while True:
        user = get_user_model().objects.create_user(username=f"u{len(users)}")
        users.append(user)
        objects.create(user=user, title="first")
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
        assert is_seen(error, caught), f"swallowed at {place[0]}: {caught!r}"
        del caught, error
        connection.close_if_unusable_or_obsolete()  # as at the end of a request: what was not sent by now is lost
        if pool == "healed":
            assert unread.count(user) == rows(user), place[0]
        else:
            gc.collect()  # a connection that was just being taken is garbage
            its = client_of("default").redis.connection_pool
            its.release(its.get_connection())
        breaker = client_of("default").breaker
        if breaker.down_since is not None:  # the traceback still had the only connection when the site committed
            assert "Too many connections" in breaker.reason, place[0]
            breaker.retry_at = 0
        objects.create(user=user, title="after")
    assert len(users) > 20
    with entries(HEAL_AFTER=0):
        unread.heal(PATIENCE)
    unread.flush()
    right, found = {user.pk: rows(user) for user in users}, unread.counts(users)
    assert not {places.get(key): (found[key], right[key]) for key in right if found[key] != right[key]}
    assert_heals(*users)


def is_seen(error: BaseException, caught: BaseException | None) -> bool:
    """The exception came out, or one that was raised while it was handled."""
    while caught is not None and caught is not error:
        caught = caught.__cause__ or caught.__context__
    return caught is error


def test_an_exception_during_a_commit_that_breaks_the_connection(alice, monkeypatch):
    """As with PyMySQL, which closes its connection: the exception comes out, and no error in its place."""

    def interrupt(_: Any) -> None:
        raise Interrupt

    def fail(_: Any) -> None:
        raise InterfaceError("closed")

    def commit_on_a_broken_connection() -> None:
        with monkeypatch.context() as patch, transaction.atomic():
            create(alice)
            patch.setattr(BaseDatabaseWrapper, "_commit", interrupt)
            patch.setattr(BaseDatabaseWrapper, "_rollback", fail)

    with pytest.raises(Interrupt):
        commit_on_a_broken_connection()
    assert unread.count(alice) == rows(alice) == 0
    create(alice)
    assert_heals(alice)
