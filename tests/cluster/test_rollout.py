"""Which way a rollout goes, why it turned, and what it says."""

from __future__ import annotations

import pytest

from cluster.rollout.rollout import RollingUpdate, Rollout, RolloutStep
from cluster.rollout.shift import SETTLE_S, START_LIMIT_S, Delete, Move, Scale, Seen, ShiftFailed

BROKEN = ("broken", "mend it")


def make_update(size: int = 2) -> RollingUpdate:
    return RollingUpdate("old", "new", size=size, drain_limit_s=30.0)


def seen(failure: tuple[str, str] | None = None, **num_running: int) -> Seen:
    return Seen(num_running, True, failure)


def test_a_version_that_fails_at_once_is_deleted_and_the_old_one_untouched() -> None:
    update = make_update()
    assert update.next(seen(old=2), 0) == Scale("new", 1)
    assert update.growing == "new"
    assert update.next(seen(BROKEN, old=2, new=0), 1) is None
    assert update.growing == "old"
    assert update.failure is not None
    assert update.failure.message == "broken"
    assert update.next(seen(old=2, new=0), 2) is None
    assert update.next(seen(old=2, new=0), 2 + SETTLE_S) == Delete("new")
    assert update.outcome(seen(old=2, new=0), 5) is None
    assert update.outcome(seen(old=2), 6) == "failed"


def test_on_the_way_back_the_old_replica_serves_before_the_new_one_leaves() -> None:
    update = make_update()
    update.next(seen(old=2), 0)
    update.next(seen(old=2, new=1), 1)
    assert update.next(seen(old=2, new=1), 1 + SETTLE_S) == Scale("old", 1)
    assert update.next(seen(old=1, new=1), 4) == Scale("new", 2)
    update.next(seen(BROKEN, old=1, new=1), 5)
    update.next(seen(old=1, new=1), 6)
    assert update.next(seen(old=1, new=1), 6 + SETTLE_S) == Scale("new", 1)
    assert update.next(seen(old=1, new=1), 9) == Scale("old", 2)
    assert update.next(seen(old=1, new=1), 10) is None
    assert update.next(seen(old=2, new=1), 11) is None
    assert update.next(seen(old=2, new=1), 11 + SETTLE_S) == Delete("new")


def test_an_old_version_that_cannot_come_back_leaves_all_as_it_is() -> None:
    update = make_update(1)
    update.next(seen(old=1), 0)
    update.next(seen(BROKEN, old=1, new=0), 1)
    update.next(seen(old=0, new=0), 2)
    update.next(seen(old=0, new=0), 2 + START_LIMIT_S + 1)
    assert update.next(seen(old=0, new=0), 9999) is None
    assert update.outcome(seen(old=0, new=0), 9999) == "failed"
    assert update.failure is not None
    assert update.failure.message == (
        "broken; and the old version could not be restored: a replica was not there after 600 s"
    )


def test_trouble_after_the_new_version_took_over_is_told_as_what_it_is() -> None:
    update = make_update(1)
    update.next(seen(old=1), 0)
    update.next(seen(old=1, new=1), 1)
    assert update.next(seen(old=1, new=1), 1 + SETTLE_S) == Delete("old")
    update.roll_back(ShiftFailed("Ray is gone", "start it"))
    assert update.outcome(seen(old=1, new=1), 5) == "failed"
    assert update.failure is not None
    assert update.failure.message.startswith("the new version serves, but the old one could not be taken")


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (Scale("new", 1), "new version: starting 1 replica"),
        (Scale("new", 2), "new version: starting 2 replicas"),
        (Scale("old", 0), "old version: keeping 0 replicas"),
        (Delete("old"), "the old version leaves: its last answers end"),
    ],
)
def test_a_move_is_told_in_words(move: Move, words: str) -> None:
    assert make_update().describe(move) == words


def test_steps_are_kept_in_order() -> None:
    rollout = Rollout("ro-1", created_at=5.0).with_step(6.0, "a").with_step(7.0, "b")
    assert rollout.steps == (RolloutStep(6.0, "a"), RolloutStep(7.0, "b"))
    assert not rollout.has_ended
