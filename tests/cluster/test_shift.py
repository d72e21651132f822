"""How fast one pool takes over from another, and what it never gives up meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.rollout.rollout import RollingUpdate
from cluster.rollout.shift import (
    ROOM_SLACK_S,
    SETTLE_S,
    START_LIMIT_S,
    Delete,
    Move,
    Scale,
    Seen,
    Shift,
    ShiftFailed,
)
from tests.cluster.fake_pools import FakePools

DRAIN_LIMIT_S = 30.0


def make_shift(size: int = 2, *, num_grow: int = 0, num_shrink: int | None = None) -> Shift:
    return Shift(
        "new",
        "old",
        size=size,
        num_grow=num_grow,
        num_shrink=size if num_shrink is None else num_shrink,
        drain_limit_s=DRAIN_LIMIT_S,
    )


def seen(old: int, new: int | None = None, *, has_room: bool = True) -> Seen:
    return Seen({"old": old} if new is None else {"old": old, "new": new}, has_room)


def settled(shift: Shift, look: Seen, at: float) -> Move | None:
    """What is done once all that run have run for a while."""
    assert shift.next(look, at) is None
    assert shift.next(look, at + SETTLE_S - 0.01) is None
    return shift.next(look, at + SETTLE_S)


def test_with_room_each_new_replica_serves_before_an_old_one_leaves() -> None:
    shift = make_shift(2)
    assert shift.next(seen(2), 0) == Scale("new", 1)
    assert shift.next(seen(2, 0), 10) is None
    assert settled(shift, seen(2, 1), 20) == Scale("old", 1)
    assert shift.next(seen(1, 1), 30) == Scale("new", 2)
    assert shift.next(seen(1, 1), 40) is None
    assert settled(shift, seen(1, 2), 50) == Delete("old")
    assert shift.next(seen(1, 2), 60) is None
    assert not shift.is_over(seen(1, 2), 60)
    assert shift.is_over(Seen({"new": 2}, True), 61)


def test_without_room_an_old_replica_leaves_first() -> None:
    shift = make_shift(2)
    assert shift.next(seen(2, has_room=False), 0) == Scale("old", 1)
    assert shift.next(seen(1, has_room=False), 5) is None
    assert shift.next(seen(1), 6) == Scale("new", 1)
    assert settled(shift, seen(1, 1, has_room=False), 20) == Scale("old", 0)
    assert shift.next(seen(0, 1), 30) == Scale("new", 2)


def test_room_that_a_leaving_replica_still_holds_is_waited_for() -> None:
    shift = make_shift(2)
    shift.next(seen(2), 0)
    assert settled(shift, seen(2, 1), 1) == Scale("old", 1)
    shrunk_at = 1 + SETTLE_S
    held_until = shrunk_at + DRAIN_LIMIT_S + ROOM_SLACK_S
    assert shift.next(seen(1, 1, has_room=False), held_until) is None
    assert shift.next(seen(1, 1, has_room=False), held_until + 0.01) == Scale("old", 0)


def test_room_that_never_comes_ends_it() -> None:
    shift = make_shift(2)
    shift.next(seen(2, has_room=False), 0)
    with pytest.raises(ShiftFailed, match="no room for one more replica"):
        shift.next(seen(1, has_room=False), DRAIN_LIMIT_S + ROOM_SLACK_S + 0.01)


def test_the_only_replica_is_not_given_up() -> None:
    with pytest.raises(ShiftFailed, match="no room") as failed:
        make_shift(1).next(seen(1, has_room=False), 0)
    assert "free the memory" in failed.value.remedy


def test_a_replica_that_fails_ends_it_with_its_own_reason() -> None:
    shift = make_shift()
    shift.next(seen(2), 0)
    with pytest.raises(ShiftFailed, match="out of memory") as failed:
        shift.next(Seen({"old": 2, "new": 0}, True, ("out of memory", "use less")), 1)
    assert failed.value.remedy == "use less"


def test_a_replica_that_does_not_come_ends_it_after_its_time() -> None:
    shift = make_shift()
    shift.next(seen(2), 0)
    assert shift.next(seen(2, 0), 5) is None
    assert shift.next(seen(2, 0), 5 + START_LIMIT_S) is None
    with pytest.raises(ShiftFailed, match="not there after 600 s"):
        shift.next(seen(2, 0), 5 + START_LIMIT_S + 0.01)


def test_a_new_replica_that_dies_is_waited_for_and_settles_again() -> None:
    shift = make_shift()
    shift.next(seen(2), 0)
    assert shift.next(seen(2, 1), 1) is None
    assert shift.next(seen(2, 0), 2) is None
    assert shift.next(seen(2, 1), 3) is None
    assert shift.next(seen(2, 1), 1 + SETTLE_S) is None
    assert shift.next(seen(2, 1), 3 + SETTLE_S) == Scale("old", 1)


def test_a_pool_that_does_not_go_holds_nobody_up() -> None:
    shift = make_shift(1)
    shift.next(seen(1), 0)
    assert settled(shift, seen(1, 1), 0) == Delete("old")
    end = SETTLE_S + DRAIN_LIMIT_S + ROOM_SLACK_S
    assert not shift.is_over(seen(1, 1), end)
    assert shift.is_over(seen(1, 1), end + 0.01)


class Cluster:
    """An update that is carried out on pools in memory."""

    def __init__(self, size: int, room: int) -> None:
        self.now = 0.0
        self.size = size
        self.pools = FakePools(room)
        self.pools.start("old", size)
        self.pools.pass_time()
        self.update = RollingUpdate("old", "new", size=size, drain_limit_s=DRAIN_LIMIT_S)
        self.failure: tuple[str, str] | None = None
        self.fewest = size

    def look(self) -> Seen:
        failure = self.failure if self.update.growing == "new" else None
        return Seen(self.pools.sizes(), self.pools.num_present < self.pools.room, failure)

    def turn(self, *, time_passes: bool) -> str | None:
        """One look and what follows from it; how it ended, if it did."""
        self.now += 0.5
        if time_passes:
            self.pools.pass_time()
        if outcome := self.update.outcome(self.look(), self.now):
            return outcome
        move = self.update.next(self.look(), self.now)
        if isinstance(move, Delete):
            self.pools.delete(move.pool_id)
        elif isinstance(move, Scale):
            if move.pool_id not in self.pools.by_id:
                self.pools.start(move.pool_id, 0)
            self.pools.scale(move.pool_id, move.num_replicas)
        self.fewest = min(self.fewest, self.pools.num_serving)
        assert self.pools.num_present <= max(self.pools.room, self.size)
        return None

    def run(self, pace: list[bool]) -> str:
        for time_passes in pace:
            if outcome := self.turn(time_passes=time_passes):
                return outcome
        for _ in range(1000):
            if outcome := self.turn(time_passes=True):
                return outcome
        raise AssertionError("it never ends")


paces = st.lists(st.booleans(), max_size=60)


@given(size=st.integers(1, 5), extra=st.integers(0, 2), pace=paces)
def test_whatever_the_pace_all_replicas_are_updated_and_enough_serve(
    size: int, extra: int, pace: list[bool]
) -> None:
    cluster = Cluster(size, size + extra)
    outcome = cluster.run(pace)
    if size == 1 and extra == 0:
        assert (outcome, cluster.pools.sizes()) == ("failed", {"old": 1})
    else:
        assert (outcome, cluster.pools.sizes()) == ("done", {"new": size})
    assert cluster.fewest >= (size if extra or size == 1 else size - 1)


@given(size=st.integers(1, 4), extra=st.integers(0, 1), fails_after=st.integers(0, 80), pace=paces)
def test_whenever_the_new_version_fails_the_old_one_is_whole_again(
    size: int, extra: int, fails_after: int, pace: list[bool]
) -> None:
    cluster = Cluster(size, size + extra)
    pace = (pace + [True] * 80)[:fails_after]
    for time_passes in pace:
        if cluster.turn(time_passes=time_passes):
            return
    is_taken_over = cluster.update.growing == "new" and cluster.pools.by_id["old"].is_leaving
    cluster.failure = ("broken", "mend it")
    outcome = cluster.run([])
    if is_taken_over:
        assert (outcome, cluster.pools.sizes()) == ("done", {"new": size})
    else:
        assert (outcome, cluster.pools.sizes()) == ("failed", {"old": size})
        assert cluster.update.failure is not None
    assert cluster.fewest >= (size if extra or size == 1 else size - 1)
