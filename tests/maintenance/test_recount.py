"""Recounts: whatever is wrong is found and corrected, whatever is right is left alone."""

from typing import Any

import pytest
from django.core.management import call_command
from django.core.validators import validate_slug
from django.db import transaction

from notifications_counter.buffer import Buffer
from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.exceptions import NotInTransaction
from notifications_counter.maintenance.recount import Difference, RecountResult
from notifications_counter.models import CounterShard, Notification, RecountRequest, UserNotificationsCount
from tests.support import (
    assert_exact,
    assert_heals,
    assert_reads,
    buffer,
    make_keys,
    notify,
    unheard,
)
from tests.tasks.counters import visible_posts
from tests.tasks.models import Post, Topic

pytestmark = [pytest.mark.django_db(transaction=True)]


def dump(redis_client: Any) -> dict[bytes, bytes]:
    """Every key of this test and what it holds."""
    return {key: redis_client.dump(key) for key in redis_client.scan_iter(match=f"{{{options.KEY_PREFIX}:*")}


def create_uncounted(user_key: Any, number: int) -> None:
    unheard(Notification.objects.bulk_create, (Notification(user_id=user_key, title="x") for _ in range(number)))


WRONG = {
    "row too high": lambda redis, user: unheard(
        UserNotificationsCount.objects.filter(pk=user.pk).update, unread_count=7
    ),
    "row too low": lambda redis, user: unheard(
        UserNotificationsCount.objects.filter(pk=user.pk).update, unread_count=-7
    ),
    "row missing": lambda redis, user: unheard(
        UserNotificationsCount.objects.filter(pk=user.pk)._raw_delete, "default"
    ),
    "pending": lambda redis, user: redis.zincrby(buffer().keys.pending, 4, str(user.pk)),
    "total": lambda redis, user: redis.set(buffer().keys.total("1", str(user.pk)), 9),
    "rows deleted": lambda redis, user: unheard(
        Notification.objects.filter(user=user, title="0")._raw_delete, "default"
    ),
    "rows created": lambda redis, user: create_uncounted(user.pk, 2),
}


@pytest.mark.keys
@pytest.mark.parametrize("everyone", [False, True], ids=["one user", "everyone"])
@pytest.mark.parametrize("name", WRONG)
def test_whatever_is_wrong_is_corrected(healed, alice, bob, redis_client, name, everyone):
    for user in (alice, bob):
        notify(user)
        unread.count(user)
    WRONG[name](redis_client, alice)
    unread.recount(None if everyone else [alice])
    assert_exact(alice, bob)


def test_what_a_recount_reports(healed, alice, bob):
    notify(alice)
    notify(bob)
    create_uncounted(bob.pk, 2)
    seen: list[Difference] = []
    assert unread.recount([alice, bob], dry_run=True, report=seen.append) == RecountResult(2, 1, 0, 0)
    assert unread.recount([alice, bob, str(bob.pk)], report=seen.append) == RecountResult(2, 1, 1, 0)
    assert seen == [Difference(bob.pk, 3, 5)] * 2
    assert unread.recount([alice, bob]) == RecountResult(2, 0, 0, 0)
    assert unread.recount([]) == RecountResult(0, 0, 0, 0)
    assert_exact(alice, bob)


def test_a_recount_of_everyone_can_be_stopped(healed, alice, bob, monkeypatch):
    monkeypatch.setattr("notifications_counter.maintenance.recount.PAGE", 1)
    notify(alice)
    notify(bob)
    assert unread.recount(stopped=lambda: True).checked == 1
    assert unread.recount().checked == 2


def test_a_dry_run_changes_nothing(healed, alice, bob, redis_client):
    notify(alice)
    notify(bob)
    create_uncounted(bob.pk, 2)
    Notification.objects.create(user=bob, title="not flushed")
    unread.count(alice)
    before = dump(redis_client), list(UserNotificationsCount.objects.order_by("pk").values())
    assert before[0]
    progress: list[int] = []
    assert unread.recount(dry_run=True, progress=progress.append).wrong == 1
    assert progress[-1] == 2
    assert (dump(redis_client), list(UserNotificationsCount.objects.order_by("pk").values())) == before


def test_a_recount_refuses_to_run_inside_a_transaction(healed, alice):
    with transaction.atomic(), pytest.raises(NotInTransaction):
        unread.recount([alice])
    with transaction.atomic(), pytest.raises(NotInTransaction):
        unread.recount(dry_run=True)
    transaction.set_autocommit(False)
    try:
        with pytest.raises(NotInTransaction):
            unread.recount([alice])
    finally:
        transaction.set_autocommit(True)


def test_keys_that_are_none(healed):
    with pytest.raises(ValueError, match="needs an owner with a primary key"):
        unread.recount([None])


@pytest.mark.parametrize("everyone", [False, True], ids=["one user", "everyone"])
def test_a_commit_that_is_on_its_way_is_not_wrong(healed, alice, everyone):
    """The database has the row, and Redis does not know yet."""
    notify(alice)
    buffer().announce("part", [str(alice.pk)])
    create_uncounted(alice.pk, 1)
    users = None if everyone else [alice]
    seen: list[Difference] = []
    assert unread.recount(users, dry_run=True, report=seen.append) == RecountResult(1, postponed=1)
    assert unread.recount(users, report=seen.append).wrong == 0
    assert_reads(alice)
    assert buffer().confirm("part", {str(alice.pk): 1}) == 0
    unread.heal()
    assert unread.recount(users, report=seen.append) == RecountResult(1, 0, 0, 0)
    assert seen == []
    assert_exact(alice)


def test_a_dry_run_while_everyone_counts_rows(alice):
    create_uncounted(alice.pk, 1)
    assert_reads(alice)
    assert unread.recount(dry_run=True) == RecountResult(1, postponed=1)


def test_a_dry_run_leaves_those_who_are_recounted_anyway(healed, alice, bob):
    notify(alice)
    notify(bob)
    create_uncounted(alice.pk, 1)
    buffer().mark_dirty([str(alice.pk), str(bob.pk)])
    assert_reads(alice, bob)
    assert unread.recount([alice, bob], dry_run=True) == RecountResult(2, postponed=1)
    assert unread.recount(dry_run=True) == RecountResult(2, postponed=1)


def test_a_confirmation_that_never_comes_is_waited_for_until_the_heal(healed, alice):
    notify(alice)
    buffer().announce("intent", [str(alice.pk)])
    create_uncounted(alice.pk, 1)
    assert_reads(alice)
    assert unread.recount([alice], dry_run=True) == RecountResult(1, postponed=1)
    assert unread.recount([alice]).corrected == 0
    assert_heals(alice)


@pytest.mark.keys
def test_keys_that_the_validators_of_their_field_refuse(monkeypatch):
    """save() does not ask them, so the database has such rows."""
    monkeypatch.setattr(Topic._meta.pk, "validators", [validate_slug])
    monkeypatch.setattr("notifications_counter.maintenance.recount.PAGE", 1)
    monkeypatch.setattr("notifications_counter.maintenance.recount.LARGE_PAGE", 1)
    topics = [Topic.objects.create(id=key) for key in ("", "news", "zoe smith")]
    Post.objects.bulk_create(Post(topic=topic) for topic in topics)
    looks: list[int] = []
    visible_posts.heal(progress=looks.append, stopped=lambda: len(looks) > 10)
    assert len(looks) == 3
    for topic in topics:
        Post.objects.create(topic=topic)
    assert_exact(*topics, counter=visible_posts)
    assert visible_posts.recount() == RecountResult(3, 0, 0, 0)
    assert visible_posts.status()[0].status.rejected == 0


def test_users_who_are_busy_are_left_to_the_next_run(healed, alice, bob, monkeypatch):
    """A write between look and fix takes the lease away."""
    notify(alice)
    create_uncounted(alice.pk, 2)
    create_uncounted(bob.pk, 1)
    fix = Buffer.fix

    def busy(self: Buffer, *args: Any) -> Any:
        Notification.objects.create(user=alice, title="busy")
        return fix(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Buffer, "fix", busy)
        result = unread.recount([alice, bob])
    assert result.retried > 0
    assert result.corrected == 1
    assert_reads(alice, bob)
    assert_exact(alice, bob, dirty=1)


# -------------------------------------------------------------------------------------------------- first install
@pytest.mark.keys
def test_first_install_that_is_stopped_half_way():
    keys = make_keys(2300)
    unheard(Notification.objects.bulk_create, (Notification(user_id=key, title="x") for key in keys))
    UserNotificationsCount.objects.bulk_create(UserNotificationsCount(pk=key, unread_count=5) for key in keys[:3])
    progress: list[int] = []
    first = unread.heal(progress=progress.append, stopped=lambda: bool(progress))
    assert first.checked == 1000
    assert unread.status()[0].is_incomplete
    assert CounterShard.objects.get(counter="unread").audited
    # Nobody trusts what the first part counted.
    unheard(Notification.objects.filter(user_id=keys[5])._raw_delete, "default")
    assert unread.count(keys[5]) == 0
    Notification.objects.create(user_id=keys[1], title="y")
    assert unread.count(keys[1]) == 2
    second = unread.heal()
    assert second.checked == 1300
    assert not unread.status()[0].is_incomplete
    assert unread.recount([keys[1], keys[5]]).wrong == 0  # their reads have corrected them
    assert_exact(*keys[:6], *keys[-4:])
    assert unread.recount(dry_run=True).wrong == 0


# ------------------------------------------------------------------------------------------------------- oddities
def test_requests_are_answered_once(healed, alice, bob):
    notify(alice)
    create_uncounted(alice.pk, 1)
    create_uncounted(bob.pk, 1)
    RecountRequest.objects.bulk_create(
        RecountRequest(counter=counter, owner=owner)
        for counter, owner in [
            ("unread", str(alice.pk)),
            ("unread", str(alice.pk)),
            ("unread", str(bob.pk)),
            ("another", str(bob.pk)),
        ]
    )
    assert unread.heal().corrected == 2
    assert list(RecountRequest.objects.values_list("counter", flat=True)) == ["another"]
    assert_exact(alice, bob)


# ------------------------------------------------------------------------------------------ an interrupted recount
@pytest.fixture
def interrupted(healed) -> list[Any]:
    """2300 owners with one row each, of whom a recount has seen the first thousand."""
    keys = make_keys(2300)
    unheard(Notification.objects.bulk_create, (Notification(user_id=key, title="x") for key in keys))
    seen: list[int] = []

    def interrupt(checked: int) -> None:
        seen.append(checked)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unread.recount(progress=interrupt)
    assert seen == [1000]
    return keys


@pytest.mark.keys
def test_a_recount_goes_on_where_it_was(interrupted):
    assert unread.recount(resume=True) == RecountResult(1300, 1300, 1300, 0)
    assert unread.recount(resume=True).checked == 2300  # that one had come to its end
    assert unread.recount(interrupted[:10], resume=True).checked == 10
    assert_exact(*interrupted[:3], *interrupted[-3:])


def test_a_recount_beside_another_one_begins_with_the_first_owner(interrupted):
    checked: list[int] = []

    def recount(_: int) -> None:
        if not checked:
            checked.append(0)
            checked.append(unread.recount(resume=True).checked)

    assert unread.recount(resume=True, progress=recount).checked == 1300
    assert checked[1:] == [2300]


def test_the_command_goes_on_where_it_was(interrupted, capsys):
    assert unread.recount(dry_run=True).checked == 2300
    call_command("recount_counters")
    said = capsys.readouterr().out
    assert f"unread: resuming after owner {interrupted[999]}, where a run was interrupted" in said
    assert "unread: checked 1,300 owners, 1,300 wrong, corrected 1,300." in said


def test_an_interrupted_recount_of_a_release_with_other_owners(healed):
    buffer().upkeep.note_recounted('owner:[7,\t"likes"]')
    assert unread.recount(resume=True) == RecountResult()


def test_the_command_begins_anew(interrupted, capsys):
    call_command("recount_counters", "--restart")
    said = capsys.readouterr().out
    assert "resuming" not in said
    assert "unread: checked 2,300 owners, 1,300 wrong" in said


def test_an_interrupted_recount_is_forgotten_after_an_hour(interrupted, redis_client):
    assert 3500 < redis_client.ttl(buffer().keys.recounted) <= 3600
    redis_client.delete(buffer().keys.recounted)
    assert unread.recount(resume=True).checked == 2300
