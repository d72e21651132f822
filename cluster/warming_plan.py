"""What a new replica computes before anybody asks for it: the prefixes that many prompts share.

A fleet grows because it is short of capacity. Were a new replica's cache filled by requests, the first of
each prefix would wait for all of it, and so would those beside it. So it is filled while the slow start keeps
most requests away (`admission_windows.py`), with a small part of what requests leave of each step: nobody
waits for it, but that steps are longer by that part.

Prefixes are sent one after the other, so that no gateway has more than one request beyond its window there.
They are in no credit, no ledger and no queue; no tenant is charged, and what is made is dropped.
Gateways do not tell each other: what another one has sent before, or sends at the same time, costs a block.
Failure mode: where every seat and step is full from the first moment on, requests fill the cache themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from cluster.admission_windows import RAMP_S
from cluster.generation import WARMING
from cluster.hot_prefixes import HotPrefixes, Truncatable
from cluster.link import Hello
from engine.block_chain import Branch
from engine.request import Request, SamplingParams

WARM_FOR_S = RAMP_S
"""Then the replica has its whole share of the load, and what is not computed is left."""
WARM_STEPS = 16
"""So many full steps' worth of tokens at most, by each gateway."""
WARM_PART = 4
"""One of so many of the replica's blocks at most."""
MAX_KNOWN = 1024
"""Replicas that are remembered, the last ones that came."""


class WarmPrompt(Truncatable, Protocol):
    @property
    def prompt_token_ids(self) -> tuple[int, ...]: ...


P = TypeVar("P", bound=WarmPrompt)


class _Plan(NamedTuple, Generic[P]):
    prompts: Iterator[P]
    until_s: float


class WarmingPlans(Generic[P]):
    """Owns what is still to be computed on which replica, and which ones have said hello before.

    `num_prefixes`: for each replica at most; 0: nothing is warmed. `now` is monotonic, in seconds.
    """

    def __init__(self, hot: HotPrefixes[P], num_prefixes: int) -> None:
        self._hot = hot
        self._num_prefixes = num_prefixes
        self._known: deque[tuple[str, int]] = deque(maxlen=MAX_KNOWN)
        self._plans: dict[str, _Plan[P]] = {}

    def greet(self, hello: Hello, num_others: int, now: float) -> None:
        """It has said hello, beside so many others that take work. Planned for are those that are new."""
        name = (hello.replica_id, hello.incarnation)
        if name in self._known:
            return
        self._known.append(name)
        if num_others:
            # What fewer ask for than there are replicas would not be used once there, while it is as hot.
            hottest = self._hot.hottest(self._num_prefixes, num_others + 1, now)
            self._plans[hello.replica_id] = _Plan(_fitting(hottest, hello), now + WARM_FOR_S)

    def next(self, replica_id: str, now: float) -> P | None:
        """What is to be computed there next, once what went before has ended; None: nothing more."""
        plan = self._plans.get(replica_id)
        return next(plan.prompts, None) if plan is not None and now < plan.until_s else None

    def forget(self, replica_id: str) -> None:
        """It is gone, or all is done."""
        self._plans.pop(replica_id, None)


def _fitting(prompts: list[P], hello: Hello) -> Iterator[P]:
    """As much of them as the replica is to be given."""
    num_left = min(
        WARM_STEPS * hello.max_num_batched_tokens, hello.num_blocks // WARM_PART * hello.block_size
    )
    for prompt in prompts:
        num_tokens = min(num_left, hello.max_model_len - 1)
        if len(prompt.prompt_token_ids) > num_tokens:
            prompt = prompt.beginning(num_tokens // hello.block_size)
        if 0 < len(prompt.prompt_token_ids) <= num_tokens:
            num_left -= len(prompt.prompt_token_ids)
            yield prompt


def warming_request(
    request_id: str,
    prompt_token_ids: tuple[int, ...],
    hash_root: bytes,
    block_hashes: tuple[bytes, ...],
    branch: Branch | None = None,
) -> Request:
    """It leaves all full blocks of the prompt in the cache, under their tenant's names."""
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
        hash_root=hash_root,
        block_hashes=block_hashes,
        branch=branch,
        priority=WARMING,
        num_uncached_tokens=len(prompt_token_ids),
    )
