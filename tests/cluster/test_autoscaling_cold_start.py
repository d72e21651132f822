"""What a start takes, stage by stage: learned from those before, and how long one on its way still needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.autoscaling.cold_start import COLD_S, NUM_KEPT, STAGES, ColdStart
from cluster.autoscaling.fleet import PoolWatch
from cluster.autoscaling.opening import seconds_of_starts
from cluster.autoscaling.starts import Starts
from cluster.pool_status import PoolStatus
from cluster.start_reports import StageReport

QUICK = {
    "node": 1.0,
    "import": 9.0,
    "weights": 4.0,
    "KV pool": 0.5,
    "warm-up": 3.0,
    "golden": 2.0,
    "join": 0.5,
}


def learned(*weights_s: float) -> float:
    cold_start = ColdStart()
    for seconds in weights_s:
        cold_start.learn({"weights": seconds})
    return cold_start.by_stage()["weights"]


class TestColdStart:
    def test_nothing_seen_is_the_stated_value(self) -> None:
        assert ColdStart().by_stage() == COLD_S
        assert ColdStart().total_s == 53.0

    def test_one_start_is_what_is_expected(self) -> None:
        cold_start = ColdStart()
        cold_start.learn(QUICK)
        assert cold_start.by_stage() == QUICK
        assert cold_start.total_s == 20.0

    def test_one_quick_start_makes_it_no_shorter_and_slow_ones_count_at_once(self) -> None:
        assert learned(8.0, 8.0, 8.0, 2.0) == 8.0
        assert learned(8.0, 8.0, 8.0, 20.0) == 14.0
        assert learned(8.0, 8.0, 20.0, 20.0) == 17.0

    def test_what_is_long_past_is_forgotten(self) -> None:
        assert learned(500.0, *[8.0] * NUM_KEPT) == 8.0

    @given(st.lists(st.floats(0, 1e4), min_size=1, max_size=20))
    def test_it_stays_within_what_was_seen_of_late_and_is_at_least_the_median(
        self, seen: list[float]
    ) -> None:
        kept = seen[-NUM_KEPT:]
        assert sorted(kept)[(len(kept) - 1) // 2] * (1 - 1e-9) <= learned(*seen) <= max(kept) * (1 + 1e-9)

    @pytest.mark.parametrize(
        ("stage", "in_stage_s", "eta_s"),
        [
            ("node", 0.0, 20.0),
            ("node", 4.0, 16.0),
            ("weights", 0.0, 10.0),
            ("weights", 3.0, 7.0),
            ("join", 0.5, 0),
        ],
    )
    def test_the_eta_is_what_is_left_of_the_stage_and_the_stages_after(
        self, stage: str, in_stage_s: float, eta_s: float
    ) -> None:
        cold_start = ColdStart()
        cold_start.learn(QUICK)
        assert cold_start.eta_s(stage, in_stage_s) == pytest.approx(eta_s)

    def test_who_is_late_is_expected_as_much_later(self) -> None:
        cold_start = ColdStart()
        cold_start.learn(QUICK)
        assert cold_start.eta_s("golden", 12.0) == pytest.approx(10.0 + 0.5)


class TestStarts:
    def test_each_stage_is_heard_and_the_start_ends_when_it_serves(self) -> None:
        starts = Starts()
        starts.begin(frozenset("a"), 100.0)
        assert starts.on_the_way(103.0) == [("a", "node", 3.0)]
        starts.hear("a", "import", 8.0, 110.0)
        starts.hear("a", "weights", 5.0, 116.0)
        assert starts.on_the_way(117.0) == [("a", "KV pool", 1.0)]
        assert starts.end(frozenset("a"), frozenset(), 117.0) == []
        starts.hear("a", "golden", 2.0, 120.0)
        assert starts.on_the_way(120.0) == [("a", "join", 0.0)]
        expected = {"node": 2.0, "import": 8.0, "weights": 5.0, "KV pool": 0.0, "warm-up": 0.0, "golden": 2.0}
        assert starts.end(frozenset(), frozenset("a"), 121.5) == [{**expected, "join": 1.5}]
        assert starts.on_the_way(122.0) == []

    def test_a_process_that_was_there_before_imported_no_longer_than_since_the_order(self) -> None:
        starts = Starts()
        starts.begin(frozenset("a"), 100.0)
        starts.hear("a", "import", 500.0, 104.0)
        (seconds,) = starts.end(frozenset(), frozenset("a"), 104.0)
        assert (seconds["node"], seconds["import"]) == (0.0, 4.0)

    def test_who_fails_or_is_not_heard_teaches_nothing(self) -> None:
        starts = Starts()
        starts.begin(frozenset("ab"), 0.0)
        starts.hear("a", "import", 1.0, 2.0)
        assert starts.end(frozenset(), frozenset("b"), 3.0) == []
        assert starts.on_the_way(3.0) == []

    def test_words_of_a_stranger_and_of_no_stage_are_nothing(self) -> None:
        starts = Starts()
        starts.begin(frozenset("a"), 0.0)
        starts.hear("b", "import", 1.0, 2.0)
        starts.hear("a", "tea", 1.0, 2.0)
        starts.hear("a", "join", 1.0, 2.0)
        assert starts.on_the_way(2.0) == [("a", "node", 2.0)]


class TestPool:
    def test_replicas_are_told_by_state_with_the_time_that_they_need(self) -> None:
        watch = PoolWatch(ColdStart())
        watch.cold_start.learn(QUICK)
        pool = PoolStatus(frozenset("s"), 5, starting=frozenset("bc"), leaving=frozenset("l"))
        watch.look(pool, 10.0)
        watch.hear("b", "import", 1.0, None)
        watch.look(pool, 12.0)
        told = [(one.replica_id, one.state, one.stage, one.eta_s) for one in watch.replicas()]
        assert told == [
            ("s", "serving", None, None),
            ("b", "starting", "weights", 8.0),
            ("c", "provisioning", "node", 18.0),
            (None, "provisioning", None, 20.0),
            (None, "provisioning", None, 20.0),
            ("l", "leaving", None, None),
        ]
        assert watch.fleet() == (5, 1, [8.0, 18.0, 20.0, 20.0], 1, 20.0)

    def test_what_a_start_took_is_learned_and_trouble_is_over_then(self) -> None:
        watch = PoolWatch(ColdStart())
        watch.look(PoolStatus(frozenset(), 2, starting=frozenset("ab")), 0.0)
        watch.hear("b", "weights", 0.0, "out of memory")
        watch.learn()
        assert watch.trouble == "weights: out of memory"
        watch.look(PoolStatus(frozenset(), 2, starting=frozenset("a")), 9.0)
        watch.hear("a", "import", 7.0, None)
        watch.look(PoolStatus(frozenset("a"), 2), 10.0)
        watch.hear("a", "golden", 1.0, None)
        watch.learn()
        assert watch.trouble is None
        learned = watch.cold_start.by_stage()
        assert [learned[stage] for stage in STAGES] == [2.0, 7.0, 0.0, 0.0, 0.0, 1.0, 0.0]


def test_the_cluster_s_own_start_teaches_all_but_the_stages_that_nobody_saw() -> None:
    passed = [
        StageReport("a", "import", 9.0),
        StageReport("b", "import", 8.0),
        StageReport("a", "golden", 2.0),
    ]
    none = {"weights": 0.0, "KV pool": 0.0, "warm-up": 0.0, "golden": 0.0}
    assert seconds_of_starts(passed) == [{**none, "import": 9.0, "golden": 2.0}, {**none, "import": 8.0}]
