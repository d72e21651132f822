"""Two tenants with secret system prompts on a real model: neither's ever shows in the other's answers.

Each answer is compared, bit for bit of every logprob, with what an engine without any cache makes of the
same prompt: an answer that was computed over a block of another conversation differs. The pool is so small
that blocks are evicted, reused and preempted all the time.
"""

from __future__ import annotations

from random import Random

import pytest

from cluster.public_prefixes import PublicPrefixes
from engine.request import Request
from engine.torch_executor import TorchExecutor
from tests.builders_model import tiny_source
from tests.cluster.tenants_on_one_engine import OneEngine, Served

BLOCK_SIZE = 16
NUM_BLOCKS = 24
NUM_ROUNDS = 20
NUM_ROUNDS_IN_SOAK = 500
VOCABULARY = range(3, tiny_source().config.vocab_size)


class Rounds:
    """Two tenants ask the same question behind system prompts of the same length; a third has stolen one.

    All behind a `shared` beginning that is public, if it is not empty.
    """

    def __init__(self, seed: int, shared: tuple[int, ...] = ()) -> None:
        self._random = Random(seed)
        public = PublicPrefixes([shared] if shared else [])
        self._cached = _engine(public, enable_prefix_caching=True, num_blocks=NUM_BLOCKS)
        self._plain = _engine(public, enable_prefix_caching=False, num_blocks=10 * NUM_BLOCKS)
        self._system = {tenant: shared + self._tokens(37) for tenant in ("acme", "zeta")}
        self._system["thief"] = self._system["acme"]
        self._num_shared_blocks = len(shared) // BLOCK_SIZE
        self.cached_tokens = 0

    def check_next(self) -> None:
        question = self._tokens(self._random.randint(1, 40))
        requests = [
            self._cached.request(tenant, system + question, max_tokens=8)
            for tenant, system in self._system.items()
        ]
        for served in self._served(*requests):
            assert len(served.foreign_blocks) <= self._num_shared_blocks
            self.cached_tokens += served.cached_tokens or 0

    def _served(self, *requests: Request) -> list[Served]:
        """All at once or one after the other; each as it would be without a cache."""
        if self._random.random() < 0.5:
            served = self._cached.run(*requests)
        else:
            served = [self._cached.run(request)[0] for request in requests]
        self._cached.core.check_integrity()
        for request, got in zip(requests, served, strict=True):
            (expected,) = self._plain.run(request)
            assert got.token_ids == expected.token_ids
            assert got.logprobs == expected.logprobs
        return served

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.choices(VOCABULARY, k=count))


def _engine(public: PublicPrefixes, *, num_blocks: int, enable_prefix_caching: bool) -> OneEngine:
    executor = TorchExecutor(tiny_source(), device="cpu", dtype="float64", deterministic=True, num_threads=1)
    executor.allocate_kv(num_blocks, BLOCK_SIZE)
    return OneEngine(
        public,
        executor,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=enable_prefix_caching,
    )


def check_rounds(rounds: Rounds, count: int) -> None:
    for _ in range(count):
        rounds.check_next()
    assert rounds.cached_tokens > count, "the cache was hardly used"


def test_a_secret_prompt_never_crosses_tenants() -> None:
    check_rounds(Rounds(seed=1), NUM_ROUNDS)


def test_a_secret_prompt_behind_a_public_prefix_never_crosses_tenants() -> None:
    check_rounds(Rounds(seed=2, shared=(*range(3, 3 + 2 * BLOCK_SIZE),)), NUM_ROUNDS)


@pytest.mark.soak
@pytest.mark.parametrize("shared", [(), (*range(3, 3 + 2 * BLOCK_SIZE),)], ids=["alone", "public prefix"])
def test_in_hundreds_of_rounds_a_secret_prompt_never_crosses_tenants(shared: tuple[int, ...]) -> None:
    check_rounds(Rounds(seed=3, shared=shared), NUM_ROUNDS_IN_SOAK)
