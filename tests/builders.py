"""Values and engines for tests: everything has a default, so a test names only what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.block_hash import hash_blocks
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.policy import FirstComeFirstServed, SchedulingPolicy
from engine.request import Request, RequestOutput, SamplingParams
from engine.scheduler import Scheduler
from engine.step import SampledToken, StepPlan, StepResult
from engine.tape import END_OF_TURN_ID, TapeExecutor, TapeSpec, prompt_hash

BLOCK_SIZE = 4
"""Small enough to count blocks in one's head."""
ROOT = b"root of the test"
EOS = END_OF_TURN_ID


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def make_request(
    request_id: str = "r",
    prompt: int | Sequence[int] = 5,
    *,
    max_tokens: int = 4,
    ignore_eos: bool = False,
    hash_root: bytes = ROOT,
    block_size: int = BLOCK_SIZE,
    **fields: Any,
) -> Request:
    """`prompt`: token ids, or their number; then they are the request's own, unlike any other's."""
    token_ids = own_tokens(request_id, prompt) if isinstance(prompt, int) else tuple(prompt)
    return Request(
        request_id=request_id,
        prompt_token_ids=token_ids,
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=ignore_eos),
        hash_root=hash_root,
        block_hashes=hash_blocks(hash_root, token_ids, block_size),
        **fields,
    )


def own_tokens(name: str, count: int) -> tuple[int, ...]:
    """Token ids that no other name has."""
    start = 1000 + int.from_bytes(name.encode()[-3:], "big") * 64
    return tuple(range(start, start + count))


def make_config(*, num_blocks: int = 101, **sizes: Any) -> EngineConfig:
    """`num_blocks` counts the null block, so the default pool holds 100."""
    defaults = {"max_model_len": 10_000, "block_size": BLOCK_SIZE, "watermark": 0.0}
    return EngineConfig(num_blocks=num_blocks, **{**defaults, **sizes})


def make_scheduler(policy: SchedulingPolicy | None = None, **sizes: Any) -> Scheduler:
    return Scheduler(make_config(**sizes), policy or FirstComeFirstServed(), eos_token_ids=[EOS])


def make_core(
    tapes: Mapping[str, tuple[int, ...]], *, clock: FakeClock | None = None, **sizes: Any
) -> EngineCore:
    """A core that plays `tapes` (prompt hash or `*` → answer)."""
    config = make_config(**sizes)
    scheduler = Scheduler(config, FirstComeFirstServed(), eos_token_ids=[EOS])
    executor = TapeExecutor(TapeSpec(tapes), num_blocks=config.num_blocks, block_size=config.block_size)
    return EngineCore(scheduler, executor, clock or FakeClock())


def tape_of(request: Request, answer: Sequence[int]) -> dict[str, tuple[int, ...]]:
    return {prompt_hash(request.prompt_token_ids): tuple(answer)}


def answer(plan: StepPlan, token_id: int = 7) -> StepResult:
    """What an executor would return that samples `token_id` wherever it must."""
    drawn = SampledToken(token_id)
    return StepResult(
        plan.step,
        tuple(None if scheduled.output_index is None else token_id for scheduled in plan.scheduled),
        siblings={row: (drawn,) * (one.n - 1) for row, one in enumerate(plan.scheduled) if one.n > 1},
    )


def step(scheduler: Scheduler, now: float = 0.0, *, token_id: int = 7) -> StepPlan:
    """One whole step; its plan."""
    plan = scheduler.schedule(now)
    scheduler.update(plan, answer(plan, token_id), now)
    scheduler.check_integrity()
    return plan


def add(scheduler: Scheduler, request_id: str, *arguments: Any, now: float = 0.0, **fields: Any) -> None:
    """Adds `make_request(request_id, …)`."""
    scheduler.add(make_request(request_id, *arguments, **fields), now)


def one_output(scheduler: Scheduler, token_id: int = 7) -> RequestOutput:
    """One step that brings exactly one output."""
    plan = scheduler.schedule(0)
    (output,) = scheduler.update(plan, answer(plan, token_id), 0)
    return output


def run_out(scheduler: Scheduler, *, max_steps: int = 1000) -> list[StepPlan]:
    """Steps until nothing is left; the plans. Fails if that takes too long."""
    plans: list[StepPlan] = []
    while scheduler.has_work():
        assert len(plans) < max_steps, f"still work after {max_steps} steps"
        plans.append(step(scheduler))
    return plans


def scheduled(plan: StepPlan) -> dict[str, int]:
    """Request id → number of scheduled tokens, in order."""
    return {request.request_id: request.num_scheduled_tokens for request in plan.scheduled}


def run_to_end(core: EngineCore, *, max_steps: int = 10_000) -> dict[str, list[RequestOutput]]:
    """Steps until nothing is left; the outputs of each request. Fails if that takes too long."""
    outputs: dict[str, list[RequestOutput]] = {}
    for _ in range(max_steps):
        if not core.has_work():
            return outputs
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
        core.check_integrity()
    raise AssertionError(f"still work after {max_steps} steps")


def tokens_of(outputs: Iterable[RequestOutput]) -> list[int]:
    """All tokens, checked to come once each and in order."""
    tokens: list[int] = []
    first: int | None = None
    for output in outputs:
        first = output.first_output_index if first is None else first
        assert output.first_output_index == first + len(tokens), "an output was lost or doubled"
        tokens.extend(output.token_ids)
    return tokens
