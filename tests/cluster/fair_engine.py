"""The production scheduler, step by step, under tenants that compete; measured from outside of its policy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from engine.policy import SchedulingPolicy
from engine.request import Flow, Request
from engine.step import StepPlan
from tests.builders import answer, make_request, make_scheduler

BLOCK_SIZE = 16


@dataclass
class Asked:
    """One request, and how far it is."""

    request: Request
    arrived: int
    """The step before which it came."""
    first_token: int | None = None
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0

    @property
    def flow_id(self) -> str:
        return self.request.flow.flow_id

    @property
    def ttft(self) -> int:
        """In steps; 1 is the step after its arrival."""
        assert self.first_token is not None
        return self.first_token - self.arrived

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def to_serve(self) -> int:
        """Tokens of service that it can still be charged."""
        to_make = self.request.sampling.max_tokens - self.num_output_tokens
        return self.num_prompt_tokens - self.num_computed_tokens + to_make


class FairEngine:
    """Owns one scheduler without a prefix cache. Steps count from 1."""

    def __init__(self, policy: SchedulingPolicy, **sizes: int) -> None:
        sizes = {"block_size": BLOCK_SIZE, "enable_prefix_caching": False, **sizes}
        self.scheduler = make_scheduler(policy, **sizes)
        self.now = 0
        self.asked: dict[str, Asked] = {}
        self.served: Counter[str] = Counter()
        """Tokens of service by flow, recomputed ones left out."""
        self.by_class: Counter[int] = Counter()
        self.most_to_serve: defaultdict[str, int] = defaultdict(int)
        """By flow, what all its requests that had begun could still be charged, at the worst."""
        self._ids = count()

    def add(
        self, flow: Flow, num_prompt_tokens: int, max_tokens: int, *, priority: int = 0, times: int = 1
    ) -> list[Asked]:
        asked = []
        for _ in range(times):
            request = make_request(
                f"{flow.flow_id}-{next(self._ids)}",
                num_prompt_tokens,
                max_tokens=max_tokens,
                priority=priority,
                flow=flow,
                block_size=BLOCK_SIZE,
            )
            asked.append(Asked(request, self.now))
            self.asked[request.request_id] = asked[-1]
            self.scheduler.add(request, self.now)
        return asked

    @property
    def waiting(self) -> set[str]:
        """Flows of which a request has not begun."""
        return {one.flow_id for one in self.asked.values() if not one.num_computed_tokens}

    def step(self) -> StepPlan:
        self.now += 1
        plan = self.scheduler.schedule(self.now)
        self._measure(plan)
        for output in self.scheduler.update(plan, answer(plan), self.now):
            one = self.asked[output.request_id]
            one.first_token = one.first_token or self.now
            one.num_output_tokens += 1
            self._serve(one, 1)
        self.scheduler.check_integrity()
        return plan

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step()

    def run_out(self, *, max_steps: int = 20_000) -> None:
        while self.scheduler.has_work():
            assert self.now < max_steps, f"still work after {max_steps} steps"
            self.step()

    def _measure(self, plan: StepPlan) -> None:
        for request_id in plan.preempted:
            self.asked[request_id].num_preemptions += 1
        begun = {row.request_id for row in plan.scheduled}
        to_serve: Counter[str] = Counter()
        for request_id, one in self.asked.items():
            if one.num_computed_tokens or request_id in begun:
                to_serve[one.flow_id] += one.to_serve
        for flow_id, tokens in to_serve.items():
            self.most_to_serve[flow_id] = max(self.most_to_serve[flow_id], tokens)
        for row in plan.scheduled:
            one = self.asked[row.request_id]
            end = min(row.num_computed_tokens + row.num_scheduled_tokens, one.num_prompt_tokens)
            self._serve(one, max(0, end - one.num_computed_tokens))
            one.num_computed_tokens = max(one.num_computed_tokens, end)

    def _serve(self, one: Asked, tokens: int) -> None:
        self.served[one.flow_id] += tokens
        self.by_class[one.request.priority] += tokens


def jain(shares: Iterable[float]) -> float:
    """1 if all are equal, 1 / n if one has everything (Jain et al. 1984)."""
    shares = list(shares)
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
