"""Several tenants on one engine, hashed as the gateway hashes: what each was served from, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.fair_policy import FairShare
from cluster.link import Hello
from cluster.prompt_chains import PromptChains
from cluster.public_prefixes import NO_PREFIXES, PublicPrefixes
from engine.block_events import NOBODY, BlockListener
from engine.core import EngineCore
from engine.executor import Executor, Pending
from engine.request import Request, SamplingParams, TokenLogprobs
from engine.scheduler import Scheduler
from engine.step import ScheduledRequest, StepPlan
from engine.tape import TapeExecutor, TapeSpec
from tenants.tenant import cache_salt
from tests.builders import BLOCK_SIZE, EOS, FakeClock, make_config
from tests.builders_tenants import SECRET

MODEL_ROOT = b"root of the model"
ANSWER = (20, 21, 22, 23, 24, 25, 26, 27)


def a_hello(root: bytes = MODEL_ROOT, block_size: int = BLOCK_SIZE) -> Hello:
    return Hello("a", 1, "tape", "r1", root, block_size, 10_000, 32, 1000, 256)


@dataclass
class Served:
    """What became of one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached_tokens: int | None = None
    diverged_at: int | None = None
    foreign_blocks: set[int] = field(default_factory=set)
    """Blocks that it read and another tenant wrote."""
    scheduled: list[int] = field(default_factory=list)
    """Tokens in each step that it was in."""

    @property
    def num_steps(self) -> int:
        return len(self.scheduled)


class WatchedExecutor:
    """Notes who wrote each block last, and who reads what another tenant wrote."""

    def __init__(self, executor: Executor, block_size: int) -> None:
        self._executor = executor
        self._block_size = block_size
        self._writer: dict[int, str] = {}
        self.served: dict[str, Served] = {}

    def submit(self, plan: StepPlan) -> Pending:
        for source, destination in plan.copies:
            self._writer[destination] = self._writer[source]
        for one in plan.scheduled:
            for block in one.block_table[one.num_computed_tokens // self._block_size : self._end(one)]:
                self._writer[block] = _tenant_of(one)
        for one in plan.scheduled:
            read = one.block_table[: self._end(one)]
            served = self.served.setdefault(one.request_id, Served())
            served.foreign_blocks |= {block for block in read if self._writer[block] != _tenant_of(one)}
            served.scheduled.append(one.num_scheduled_tokens)
        return self._executor.submit(plan)

    def _end(self, one: ScheduledRequest) -> int:
        """Blocks that hold its tokens behind this step."""
        return -(-(one.num_computed_tokens + one.num_scheduled_tokens) // self._block_size)

    def reset(self) -> None:
        self._executor.reset()


def _tenant_of(one: ScheduledRequest) -> str:
    return one.request_id.partition("-")[0]


class OneEngine:
    """Owns an engine and the requests that it served. By default a tape says `ANSWER` to everything."""

    def __init__(
        self,
        public: PublicPrefixes = NO_PREFIXES,
        executor: Executor | None = None,
        listener: BlockListener = NOBODY,
        **sizes: int,
    ) -> None:
        config = make_config(**{"num_blocks": 1001, "max_num_batched_tokens": 2048} | sizes)
        self._block_size = config.block_size
        tape = TapeExecutor(
            TapeSpec({"*": ANSWER}), num_blocks=config.num_blocks, block_size=config.block_size
        )
        self.executor = WatchedExecutor(executor or tape, config.block_size)
        scheduler = Scheduler(config, FairShare(), eos_token_ids=[EOS], listener=listener)
        self.core = EngineCore(scheduler, self.executor, FakeClock())
        self._public = public
        self._num_requests = 0

    def request(
        self,
        tenant: str,
        prompt: Sequence[int],
        max_tokens: int = 4,
        output: Sequence[int] = (),
        n: int = 1,
        root: bytes = MODEL_ROOT,
    ) -> Request:
        """As the gateway would submit it. `output`: it goes on behind these."""
        chains = PromptChains(tuple(prompt), cache_salt(SECRET, tenant), self._public)
        chain = chains.of(a_hello(root, self._block_size))
        self._num_requests += 1
        return Request(
            request_id=f"{tenant}-{self._num_requests}",
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, num_logprobs=3),
            hash_root=chain.root,
            block_hashes=chain.block_hashes,
            branch=chain.branch,
            output_token_ids=tuple(output),
            n=n,
        )

    def run(self, *requests: Request) -> list[Served]:
        """All together, to their ends."""
        for request in requests:
            self.core.add(request)
        while self.core.has_work():
            for output in self.core.step():
                served = self.executor.served[output.request_id]
                served.token_ids += output.token_ids
                served.logprobs += output.logprobs or ()
                if output.num_cached_tokens is not None:
                    served.cached_tokens = output.num_cached_tokens
                    served.diverged_at = output.lookup.diverged_at if output.lookup else None
        return [self.executor.served.pop(request.request_id) for request in requests]

    def ask(self, tenant: str, prompt: Sequence[int], max_tokens: int = 4) -> Served:
        (served,) = self.run(self.request(tenant, prompt, max_tokens))
        self.core.check_integrity()
        return served
