"""A rollout from its being asked for to its end, on pools in memory: what is done, told and kept."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import redis

from cluster.golden import GoldenPrompt
from cluster.pool_status import PoolStatus
from cluster.preflight import open_model, plan_engine
from cluster.rollout.check import text_rules
from cluster.rollout.rollout import Order, Rollout
from cluster.rollout.runner import TELL_SERVING_EVERY_S, TROUBLE_LIMIT_S, RolloutRunner
from cluster.settings import ServeSettings
from cluster.spec import ClusterSpec
from cluster.start_reports import StageReport
from tenants.store import CorruptRecord
from tests.builders import FakeClock
from tests.cluster.fake_pools import FakePools

WALL_TIME = 1_700_000_000.0


def make_spec(model: str = "tape:") -> ClusterSpec:
    settings = ServeSettings(model=model, replicas=2)
    source = open_model(settings)
    return ClusterSpec(
        settings=settings,
        engine=plan_engine(settings, source),
        served_name="tape",
        redis_url="unix:///redis.sock",
        cluster_id="c",
        run_path=Path("/tmp/hr-0/abcdef"),
        threads_per_replica=1,
        revision=source.config.revision,
    )


class Queue:
    """Redis as the launcher sees it."""

    def __init__(self) -> None:
        self.current: Order | None = None
        self.told: list[Rollout] = []
        self.serving: list[str] = []
        self.is_away = False
        self.is_corrupt = False
        self.is_closed = False

    def asked(self) -> Order | None:
        self._check()
        if self.is_corrupt:
            raise CorruptRecord("not ours")
        return self.current

    def tell(self, rollout: Rollout) -> None:
        self._check()
        self.told.append(msgspec.json.decode(msgspec.json.encode(rollout), type=Rollout))
        self.current = None if rollout.has_ended else Order(rollout)

    def drop(self) -> None:
        self._check()
        self.is_corrupt = False

    def tell_serving(self, model: str) -> None:
        self._check()
        self.serving.append(model)

    def close(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        if self.is_away:
            raise redis.ConnectionError


class Reports:
    def __init__(self) -> None:
        self.rows: list[StageReport] = []
        self.num_open = 0

    def opened(self) -> Reports:
        self.num_open += 1
        return self

    def close(self) -> None:
        self.num_open -= 1

    def pop_all(self) -> list[StageReport]:
        rows, self.rows = self.rows, []
        return rows


class Launcher:
    """A runner over two serving replicas, and the time that passes."""

    def __init__(self, *, room: int = 3, bad: frozenset[str] = frozenset()) -> None:
        self.clock = FakeClock(100.0)
        self.queue = Queue()
        self.pools = FakePools(room, bad=bad)
        self.pools.start("1", 2)
        self.pools.pass_time()
        self.reports: dict[str, Reports] = {}
        self.said: list[str] = []
        self.runner = RolloutRunner(
            make_spec(),
            text_rules(open_model(ServeSettings(model="tape:"))),
            self.pools,
            self.queue,
            lambda spec: self.reports.setdefault(spec.pool_id, Reports()).opened(),
            has_room=lambda version: self.pools.num_present < self.pools.room,
            clock=self.clock,
            wall_clock=lambda: WALL_TIME + self.clock(),
            say=self.said.append,
        )

    def ask(self, model: str | None = None, rollout_id: str = "ro-1", **fields: object) -> None:
        self.queue.current = Order(Rollout(rollout_id, WALL_TIME, model=model, **fields))  # type: ignore[arg-type]

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(0.5)
            self.pools.pass_time()
            self.runner.tick()

    def run(self) -> Rollout:
        """Until it has ended."""
        for _ in range(4000):
            self.look()
            if self.queue.told and self.queue.told[-1].has_ended:
                return self.queue.told[-1]
        raise AssertionError("it never ends")


@pytest.fixture
def other_tape(tmp_path: Path) -> str:
    path = tmp_path / "b.jsonl"
    path.write_text('{"prompt_hash": "*", "token_ids": [66]}\n')
    return f"tape:{path}"


def test_a_good_version_takes_over_and_is_the_one_that_serves(other_tape: str) -> None:
    launcher = Launcher()
    launcher.ask(other_tape)
    ended = launcher.run()
    assert (ended.state, ended.error, ended.num_replicas, ended.num_updated) == ("done", None, 2, 2)
    assert launcher.pools.sizes() == {"ro-1": 2}
    (spec,) = launcher.pools.specs
    assert launcher.runner.serving == spec
    assert (spec.settings.model, spec.served_name) == (other_tape, "tape")
    assert spec.revision != make_spec().revision
    assert [step.text for step in ended.steps] == [
        f"checked: {other_tape}, revision {(spec.revision or '')[:12]}",
        "new version: starting 1 replica",
        "old version: keeping 1 replica",
        "new version: starting 2 replicas",
        "the old version leaves: its last answers end",
    ]
    assert launcher.said == [*(step.text for step in ended.steps), "done"]
    assert ended.ended_at == WALL_TIME + launcher.clock()


def test_the_next_rollout_starts_from_the_version_of_the_last(other_tape: str) -> None:
    launcher = Launcher()
    launcher.ask(other_tape)
    launcher.run()
    launcher.ask("tape:", "ro-2")
    launcher.queue.told.clear()
    assert launcher.run().state == "done"
    assert launcher.pools.sizes() == {"ro-2": 2}


def test_how_far_it_is_is_told_on_the_way(other_tape: str) -> None:
    launcher = Launcher()
    launcher.ask(other_tape)
    launcher.run()
    assert [rollout.state for rollout in launcher.queue.told][:2] == ["checking", "running"]
    assert {rollout.num_updated for rollout in launcher.queue.told} == {0, 1, 2}


def test_a_replica_s_own_words_are_why_it_failed_and_the_old_version_serves(other_tape: str) -> None:
    launcher = Launcher(bad=frozenset({"ro-1"}))
    launcher.ask(other_tape)
    launcher.look(3)
    launcher.reports["1"] = Reports()
    launcher.reports["1"].rows.append(StageReport("old", "weights", 0.0, error="long past"))
    launcher.reports["ro-1"].rows += [
        StageReport("new", "weights", 1.25),
        StageReport("new", "golden", 0.0, error="golden prompt 1 got an empty answer", remedy="mend it"),
    ]
    ended = launcher.run()
    assert (ended.state, ended.error, ended.remedy) == (
        "failed",
        "golden prompt 1 got an empty answer",
        "mend it",
    )
    assert launcher.pools.sizes() == {"1": 2}
    assert launcher.runner.serving == make_spec()
    assert [step.text for step in ended.steps][2:] == [
        "weights passed in 1.2 s",
        "failed: golden prompt 1 got an empty answer",
        "the new version leaves: its last answers end",
        "the old version serves with 2 of 2 replica(s)",
    ]


def test_what_serve_says_of_a_pool_is_the_reason_if_no_replica_told_one(other_tape: str) -> None:
    launcher = Launcher(bad=frozenset({"ro-1"}))
    launcher.ask(other_tape)
    launcher.look(3)
    launcher.pools.by_id["ro-1"].failure = "the replica's process ended"
    assert launcher.run().error == "the replica's process ended"
    assert launcher.pools.sizes() == {"1": 2}


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"model": "/none.gguf"}, "--model /none.gguf: model '/none.gguf' was not found"),
        ({"revision": "abcd"}, "the files of tape: are revision"),
        ({"model": "tape:?max_model_len=100"}, "a context of 100 tokens, and clients were promised 8192"),
    ],
)
def test_what_cannot_be_served_is_refused_before_a_replica_is_started(
    asked: dict[str, str], error: str
) -> None:
    launcher = Launcher()
    launcher.ask(**asked)  # type: ignore[arg-type]
    ended = launcher.run()
    assert ended.state == "failed"
    assert error in (ended.error or "")
    assert ended.remedy
    assert [step.text for step in ended.steps] == ["nothing was started: the old version serves on"]
    assert launcher.pools.specs == []


def test_trouble_with_ray_is_outlasted(other_tape: str) -> None:
    launcher = Launcher()
    launcher.ask(other_tape)
    launcher.look(2)
    launcher.pools.trouble = RuntimeError("the controller restarts")
    launcher.look(int(TROUBLE_LIMIT_S))
    launcher.pools.trouble = None
    assert launcher.run().state == "done"
    assert launcher.pools.sizes() == {"ro-1": 2}


def test_trouble_that_lasts_turns_it_back(other_tape: str) -> None:
    launcher = Launcher()
    launcher.ask(other_tape)
    launcher.look(4)
    launcher.pools.trouble = RuntimeError("no more")
    launcher.look(int(3 * TROUBLE_LIMIT_S))
    launcher.pools.trouble = None
    ended = launcher.run()
    assert (ended.state, ended.error) == ("failed", "Ray Serve failed: RuntimeError")
    assert launcher.pools.sizes() == {"1": 2}


def test_without_redis_it_goes_on_and_is_told_later(other_tape: str) -> None:
    launcher = Launcher()
    launcher.ask(other_tape)
    launcher.look(2)
    launcher.queue.is_away = True
    launcher.look(60)
    assert launcher.pools.sizes() == {"ro-1": 2}
    assert not launcher.queue.told[-1].has_ended
    launcher.queue.is_away = False
    launcher.look()
    assert launcher.queue.told[-1].state == "done"


def test_nothing_happens_between_two_looks(other_tape: str) -> None:
    launcher = Launcher()
    launcher.ask(other_tape)
    launcher.runner.tick()
    told = len(launcher.queue.told)
    for _ in range(4):
        launcher.clock.advance(0.1)
        launcher.runner.tick()
    assert len(launcher.queue.told) == told


def test_a_pool_that_is_there_is_scaled_and_not_deployed_again(other_tape: str) -> None:
    """An order that Ray took before it failed is not given twice."""
    launcher = Launcher()
    launcher.ask(other_tape)
    launcher.look(1)
    deploy = launcher.pools.deploy

    def deploys_and_fails(spec: ClusterSpec, num_replicas: int) -> None:
        deploy(spec, num_replicas)
        launcher.pools.deploy = deploy  # type: ignore[method-assign]
        raise RuntimeError("the answer was lost")

    launcher.pools.deploy = deploys_and_fails  # type: ignore[method-assign]
    assert launcher.run().state == "done"
    assert launcher.pools.status("ro-1") == PoolStatus(frozenset({"ro-1-0", "ro-1-1"}), 2)


def test_an_old_pool_that_vanished_comes_back_as_the_old_version(other_tape: str) -> None:
    launcher = Launcher(room=2)
    launcher.ask(other_tape)
    launcher.look(12)
    assert launcher.pools.by_id.pop("1").target == 0
    launcher.reports["ro-1"].rows.append(StageReport("new", "golden", 0.0, error="wrong", remedy="mend it"))
    assert launcher.run().state == "failed"
    assert launcher.pools.sizes() == {"1": 2}
    assert [spec.settings.model for spec in launcher.pools.specs] == [other_tape, "tape:"]


def test_an_order_that_cannot_be_read_is_dropped_and_the_next_one_is_run(
    other_tape: str, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = Launcher()
    launcher.queue.is_corrupt = True
    launcher.look()
    assert not launcher.queue.is_corrupt
    assert caplog.messages == ["a rollout that was asked for is dropped: not ours"]
    launcher.ask(other_tape)
    assert launcher.run().state == "done"


def test_golden_prompts_that_were_given_go_to_the_new_replicas(other_tape: str) -> None:
    launcher = Launcher()
    golden = (GoldenPrompt(prompt="x", text="B"),)
    launcher.queue.current = Order(Rollout("ro-1", WALL_TIME, model=other_tape, num_golden=1), golden)
    assert launcher.run().num_golden == 1
    assert launcher.runner.serving.golden == golden


def test_gateways_are_told_the_model_that_serves_at_once_and_again_and_again(other_tape: str) -> None:
    launcher = Launcher()
    launcher.look()
    assert launcher.queue.serving == ["tape:"]
    launcher.ask(other_tape)
    launcher.run()
    assert launcher.queue.serving[-1] == other_tape
    launcher.queue.serving.clear()
    launcher.queue.is_away = True
    launcher.look(int(2 * TELL_SERVING_EVERY_S) + 1)
    launcher.queue.is_away = False
    launcher.look(2)
    assert launcher.queue.serving == [other_tape]


def test_after_a_failed_version_gateways_are_told_the_old_one(other_tape: str) -> None:
    launcher = Launcher(bad=frozenset({"ro-1"}))
    launcher.ask(other_tape)
    launcher.look(3)
    launcher.pools.by_id["ro-1"].failure = "broken"
    launcher.run()
    launcher.look(int(2 * TELL_SERVING_EVERY_S) + 1)
    assert set(launcher.queue.serving) == {"tape:"}


@pytest.mark.parametrize("failure", [None, "broken"])
def test_what_was_opened_for_a_rollout_is_closed_with_it(other_tape: str, failure: str | None) -> None:
    launcher = Launcher()
    launcher.ask(other_tape)
    launcher.look(3)
    launcher.pools.by_id["ro-1"].failure = failure
    launcher.run()
    assert {name: one.num_open for name, one in launcher.reports.items()} == dict.fromkeys(
        launcher.reports, 0
    )


def test_a_stop_in_the_middle_closes_all_and_moves_nothing(other_tape: str) -> None:
    launcher = Launcher()
    launcher.ask(other_tape)
    launcher.look(3)
    sizes = launcher.pools.sizes()
    launcher.runner.close()
    assert launcher.queue.is_closed
    assert launcher.reports["ro-1"].num_open == 0
    assert launcher.pools.sizes() == sizes
