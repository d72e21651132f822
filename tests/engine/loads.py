"""Random loads for the scheduler, and a run that checks every invariant at every step.

What must hold is written here once, in `Run`; `test_random_loads.py` says over which loads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from hypothesis import strategies as st

from engine.block_events import NOBODY, BlockListener
from engine.config import EngineConfig
from engine.policy import FirstComeFirstServed, SchedulingPolicy
from engine.request import Flow, Request, RequestOutput
from engine.request_state import MAX_PREEMPTIONS
from engine.scheduler import RequestRefused, Scheduler
from engine.step import StepPlan, StepResult
from engine.tape import TapeExecutor, TapeSpec, prompt_hash
from tests.builders import EOS, make_request, tokens_of

Action = Literal["add", "step", "abort", "step and abort", "fail", "fail a row"]
Key = tuple[str, int]
"""Request id, sibling."""


FLOWS = (Flow("a", 1), Flow("b", 1), Flow("c", 4))


@dataclass(frozen=True)
class Event:
    action: Action
    choice: int = 0
    """Which live sibling is aborted, or which row of the step fails; even: its whole request is aborted."""
    prompt: tuple[int, ...] = ()
    max_tokens: int = 1
    priority: int = 0
    num_resumed: int = 0
    """Tokens of the answer that the request brings along."""
    n: int = 1
    flow: Flow = FLOWS[0]


def answer_to(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The tape of a prompt: 8 to 39 tokens that depend on every token of it."""
    digest = bytes.fromhex(prompt_hash(prompt))
    return tuple((digest * 3)[: 8 + digest[-1] % 32])


def expected_answer(request: Request, max_model_len: int) -> list[int]:
    """All output tokens of a request that runs to its end, those that it brought included."""
    limit = min(request.sampling.max_tokens, max_model_len - len(request.prompt_token_ids))
    return [*answer_to(request.prompt_token_ids), EOS][:limit]


_shared = st.tuples(st.sampled_from([0, 1]), st.integers(0, 9)).map(lambda p: (100 + p[0],) * p[1])
_own = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)
_prompts = st.builds(lambda shared, own: shared + own, _shared, _own)

_adds = st.builds(
    Event,
    st.just("add"),
    prompt=_prompts,
    max_tokens=st.integers(1, 40),
    priority=st.integers(0, 1),
    num_resumed=st.integers(0, 2),
    n=st.sampled_from([1, 1, 2, 4]),
    flow=st.sampled_from(FLOWS),
)
_others = st.builds(
    Event,
    st.sampled_from(["step", "step", "step", "abort", "step and abort", "fail", "fail a row"]),
    st.integers(0, 99),
)
_calm = st.just(Event("step"))


def loads(*, is_calm: bool = False) -> st.SearchStrategy[list[Event]]:
    """Histories of events; calm ones hold neither aborts nor failures."""
    return st.lists(_adds | (_calm if is_calm else _others), min_size=8, max_size=60)


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    """Tiny pools, budgets and contexts, in which everything is short of something."""
    max_num_seqs = draw(st.integers(1, 8))
    return EngineConfig(
        num_blocks=draw(st.integers(8, 24)),
        max_model_len=draw(st.integers(12, 64)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.integers(max_num_seqs, 24)),
        block_size=draw(st.integers(1, 3)),
        enable_prefix_caching=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.1])),
    )


@dataclass
class Run:
    """One history, played on a scheduler and a tape executor."""

    config: EngineConfig
    listener: BlockListener = NOBODY
    policy: SchedulingPolicy = field(default_factory=FirstComeFirstServed)
    requests: dict[str, Request] = field(default_factory=dict)
    outputs: dict[Key, list[RequestOutput]] = field(default_factory=dict)
    num_failed_steps: int = 0
    num_preemptions: int = 0
    num_copies: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.config, self.policy, eos_token_ids=[EOS], listener=self.listener)
        self.tapes: dict[str, tuple[int, ...]] = {}
        self.executor = TapeExecutor(
            TapeSpec(self.tapes), num_blocks=self.config.num_blocks, block_size=self.config.block_size
        )
        self._steps_to_wait: dict[str, int] = {}
        """Requests of the highest class that never ran → steps that they may still have to wait, where
        nobody overtakes them."""

    def play(self, events: list[Event]) -> None:
        for event in events:
            if event.action == "add":
                self._add(event)
            elif event.action == "abort":
                self._abort(event.choice)
            else:
                self._step(event)
            self.scheduler.check_integrity()

    def finish(self) -> None:
        """Runs to the end, in no more steps than tokens could be computed, and checks what is left."""
        for _ in range(self._most_steps(self.requests.values())):
            if not self.scheduler.has_work():
                break
            self._step(Event("step"))
            self.scheduler.check_integrity()
        counters = self.scheduler.counters()
        assert (counters.requests_running, counters.requests_waiting) == (0, 0)
        assert (counters.blocks_in_use, counters.queued_tokens, counters.kv_waste_ratio) == (0, 0, 0.0)
        assert counters.preemptions_total == self.num_preemptions
        for request_id, sibling in self.outputs:
            self._check_outputs(request_id, sibling)

    def most_preemptions(self) -> int:
        """Of the siblings that ended."""
        timings = [outputs[-1].timing for outputs in self.outputs.values()]
        return max((timing.num_preemptions for timing in timings if timing), default=0)

    def _most_steps(self, requests: Iterable[Request]) -> int:
        """Each step computes at least one token, and none is computed more often than so many times."""
        times = MAX_PREEMPTIONS + 1 + self.num_failed_steps  # a failed step makes all others begin again
        return times * sum(r.n * (len(r.prompt_token_ids) + r.sampling.max_tokens) for r in requests)

    def _live(self) -> list[Key]:
        return [key for key, rows in self.outputs.items() if not (rows and rows[-1].finish_reason)]

    def _add(self, event: Event) -> None:
        answer = expected_answer(
            make_request("r", event.prompt, max_tokens=event.max_tokens), self.config.max_model_len
        )
        num_resumed = min(event.num_resumed, len(answer) - 1) if event.n == 1 else 0
        request = make_request(
            f"r{len(self.requests)}",
            event.prompt,
            max_tokens=event.max_tokens,
            block_size=self.config.block_size,
            priority=event.priority,
            output_token_ids=tuple(answer[:num_resumed]),
            n=event.n,
            flow=event.flow,
        )
        try:
            self.scheduler.add(request, now=0)
        except RequestRefused:
            return
        ahead = {request_id for request_id, _ in self._live()}
        self.requests[request.request_id] = request
        self.outputs |= {(request.request_id, sibling): [] for sibling in range(request.n)}
        self.tapes[prompt_hash(event.prompt)] = answer_to(event.prompt)
        if event.priority == 0 and isinstance(self.policy, FirstComeFirstServed):
            steps = self._most_steps(self.requests[request_id] for request_id in ahead)
            self._steps_to_wait[request.request_id] = steps + 1

    def _abort(self, choice: int) -> None:
        live = self._live()
        if not live:
            return
        request_id, sibling = live[choice // 2 % len(live)]
        is_forked = bool(self.outputs[request_id, 0])
        if choice % 2 == 0 or not is_forked:
            outputs = self.scheduler.abort(request_id, now=0)
            assert {(o.request_id, o.sibling) for o in outputs} == {k for k in live if k[0] == request_id}
        else:
            outputs = self.scheduler.abort(request_id, now=0, sibling=sibling)
            assert [(o.request_id, o.sibling) for o in outputs] == [(request_id, sibling)]
        self._take(outputs)

    def _step(self, event: Event) -> None:
        had_work = self.scheduler.has_work()
        plan = self.scheduler.schedule(now=0)
        self.scheduler.check_integrity()
        self._check_plan(plan, had_work)
        self._check_waiting(plan)
        result = self.executor.submit(plan).result()
        if event.action == "step and abort":
            self._abort(event.choice)
            self.scheduler.check_integrity()
        if event.action == "fail":
            outputs = self.scheduler.fail(plan, now=0)
            self.executor.reset()
            self.num_failed_steps += 1
        else:
            if event.action == "fail a row" and plan.scheduled:
                result = with_failed_row(result, event.choice % len(plan.scheduled))
            outputs = self.scheduler.update(plan, result, now=0)
        self._take(outputs)

    def _take(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            rows = self.outputs[output.request_id, output.sibling]
            assert not (rows and rows[-1].finish_reason), "an output after the last"
            rows.append(output)

    def _check_plan(self, plan: StepPlan, had_work: bool) -> None:
        block_size = self.config.block_size
        assert bool(plan.scheduled) == had_work, "a step with work always computes something"
        assert plan.num_scheduled_tokens <= self.config.max_num_batched_tokens
        assert len(plan.scheduled) <= self.config.max_num_seqs
        assert self.scheduler.counters().requests_running <= self.config.max_num_seqs
        uses = Counter(block for request in plan.scheduled for block in request.block_table)
        assert 0 not in uses
        for request in plan.scheduled:
            end = request.num_computed_tokens + request.num_scheduled_tokens
            assert len(request.block_table) == -(-end // block_size), "blocks come chunk by chunk"
            written = request.block_table[request.num_computed_tokens // block_size :]
            assert all(uses[block] == 1 for block in written), "a written block has one owner"
        destinations = [destination for _, destination in plan.copies]
        assert len(set(destinations)) == len(destinations), "a block is copied into once"
        self.num_preemptions += len(plan.preempted)
        self.num_copies += len(plan.copies)

    def _check_waiting(self, plan: StepPlan) -> None:
        """Nobody of the highest class starves."""
        live = {request_id for request_id, _ in self._live()}
        for request_id in {request.request_id for request in plan.scheduled} | (self.requests.keys() - live):
            self._steps_to_wait.pop(request_id, None)
        for request_id in self._steps_to_wait:
            self._steps_to_wait[request_id] -= 1
            assert self._steps_to_wait[request_id] > 0 or self.num_failed_steps, f"{request_id} starves"

    def _check_outputs(self, request_id: str, sibling: int) -> None:
        request, outputs = self.requests[request_id], self.outputs[request_id, sibling]
        expected = expected_answer(request, self.config.max_model_len)[len(request.output_token_ids) :]
        tokens, last = tokens_of(outputs), outputs[-1]
        assert outputs[0].first_output_index == len(request.output_token_ids)
        assert last.timing is not None
        assert last.timing.num_preemptions <= MAX_PREEMPTIONS
        assert [output.num_cached_tokens is not None for output in outputs] == [sibling == 0] + [False] * (
            len(outputs) - 1
        )
        assert [output.timing is not None for output in outputs] == [False] * (len(outputs) - 1) + [True]
        if last.finish_reason in ("stop", "length"):
            assert tokens == expected
            assert last.finish_reason == ("stop" if expected[-1] == EOS else "length")
        else:
            assert tokens == expected[: len(tokens)]


def with_failed_row(result: StepResult, row: int) -> StepResult:
    token_ids = tuple(None if i == row else token_id for i, token_id in enumerate(result.token_ids))
    siblings = {i: others for i, others in result.siblings.items() if i != row}
    return StepResult(result.step, token_ids, errors={row: "non_finite_logits"}, siblings=siblings)


def heavy_load(random: Random, num_events: int) -> list[Event]:
    """A long history with more requests than room, in bursts of a higher class over a lower one."""
    events: list[Event] = []
    while len(events) < num_events:
        priority = random.choice([0, 1, 1])
        events += [_random_add(random, priority) for _ in range(random.randint(1, 4))]
        for _ in range(random.randint(1, 12)):
            actions = ["step", "abort", "step and abort", "fail a row", "fail"]
            action = random.choices(actions, [93, 3, 2, 1, 1])[0]
            events.append(Event(action, random.randint(0, 99)))  # type: ignore[arg-type]
    return events


def _random_add(random: Random, priority: int) -> Event:
    shared = (100 + random.randint(0, 1),) * random.randint(0, 9)
    own = tuple(random.randint(0, 2) for _ in range(random.randint(1, 5)))
    return Event(
        "add",
        prompt=shared + own,
        max_tokens=random.randint(1, 30),
        priority=priority,
        n=random.choice([1, 1, 1, 2, 3]),
        flow=random.choice(FLOWS),
    )


def long_overloads(num_runs: int, make_policy: Callable[[], SchedulingPolicy]) -> Counter[str]:
    """What so many long runs reached. Hypothesis finds small histories; these get to third preemptions."""
    reached: Counter[str] = Counter()
    for seed in range(num_runs):
        config = EngineConfig(
            num_blocks=21,
            max_model_len=60,
            max_num_seqs=8,
            max_num_batched_tokens=12,
            block_size=2,
            watermark=0.0,
            enable_prefix_caching=seed % 3 > 0,
        )
        run = Run(config, policy=make_policy())
        run.play(heavy_load(Random(seed), 200))
        run.finish()
        reached["preemptions"] += run.num_preemptions
        reached["third preemptions"] += run.most_preemptions() >= 3
        reached["copies"] += run.num_copies
        reached["hits"] += run.scheduler.counters().prefix_hits_tokens_total
    return reached
