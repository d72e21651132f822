"""Reference mode: answers that lost their replica on the way are, token by token, those that did not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from cluster.cluster_generator import ClusterGenerator
from cluster.generation import GenerationRequest
from cluster.link_events import LinkEvents
from cluster.links import Links
from cluster.running import Running
from engine.core import EngineCore
from engine.request import Request, TokenLogprobs
from engine.torch_executor import TorchExecutor
from tests.builders_model import make_torch_core, tiny_source
from tests.builders_tenants import SECRET
from tests.cluster.dispatching import Dispatching
from tests.cluster.fake_books import an_account
from tests.cluster.fake_replica import OpenDoor
from tests.cluster.fakes import InlineExecutor
from tests.cluster.mortal_replica import MortalReplica
from tests.engine.equality import Answer, Outcome, differing, mixed_requests, one_by_one, outcomes

FIRST_LETTER = 0x100
AT_ONCE = 12
PAUSE = 25
"""Steps of all replicas together, between two deaths. No request should meet three of them."""


class Deaths:
    """What became of requests, counted."""

    def __init__(self) -> None:
        self.resumed: Counter[str] = Counter()

    def count_discarded(self, num_tokens: int) -> None: ...

    def count_resumed(self, reason: str) -> None:
        self.resumed[reason] += 1

    def count_poisonous(self) -> None:
        raise AssertionError("nothing here is poisonous")

    def count_prediction(self, predicted_tokens: int, actual_tokens: int) -> None: ...


class Reaper:
    """Which step is a replica's last: some time after `pause` steps without a death.

    None while a suspect is on probation: a second death would be blamed on it, guilty or not.
    """

    def __init__(self, random: Random, *, pause: int) -> None:
        self._random = random
        self._pause = pause
        self._since = 0
        self.has_suspects: Callable[[], bool] = lambda: False

    def __call__(self, num_steps: int) -> bool:
        self._since += 1
        is_due = self._since > self._pause and not self.has_suspects() and self._random.random() < 0.2
        if is_due:
            self._since = 0
        return is_due


def make_core(**sizes: object) -> EngineCore:
    executor = TorchExecutor(tiny_source(), device="cpu", dtype="float64", deterministic=True, num_threads=1)
    return make_torch_core(tiny_source(), dtype="float64", executor=executor, **sizes)  # type: ignore[arg-type]


def letter_of(token_id: int) -> bytes:
    """Each token is a letter of its own, so that the text tells the tokens."""
    return chr(FIRST_LETTER + token_id).encode()


async def answered(
    generator: ClusterGenerator, request: Request, gate: asyncio.Semaphore
) -> dict[Answer, Outcome]:
    asked = GenerationRequest(
        request_id=request.request_id,
        account=an_account(),
        prompt_token_ids=request.prompt_token_ids,
        sampling=request.sampling,
        n=request.n,
        deadline=1.0,
    )
    texts = [""] * request.n
    logprobs: list[list[TokenLogprobs]] = [[] for _ in range(request.n)]
    reasons: list[str | None] = [None] * request.n
    async with gate:
        generation = await generator.start(asked)
        async for delta in generation.deltas():
            texts[delta.sibling] += delta.text
            logprobs[delta.sibling] += [told.logprobs for told in delta.tokens]
            reasons[delta.sibling] = delta.finish_reason
        assert generation.usage.completion_tokens == sum(map(len, texts))
    return {
        (request.request_id, sibling): Outcome(
            [ord(letter) - FIRST_LETTER for letter in texts[sibling]],
            logprobs[sibling] or None,
            reasons[sibling],  # type: ignore[arg-type]
        )
        for sibling in range(request.n)
    }


async def answered_by_mortals(
    requests: list[Request], random: Random, pause: int
) -> tuple[dict[Answer, Outcome], Deaths, int]:
    """The outcomes, what was counted, and how often a replica died."""
    seen, reaper = Deaths(), Reaper(random, pause=pause)
    replicas = {
        name: MortalReplica(
            name,
            lambda: make_core(max_num_seqs=4, max_num_batched_tokens=16),
            reaper,
        )
        for name in "abc"
    }
    links = Links(replicas.__getitem__, lambda: 0.0, LinkEvents(on_credit=lambda: dispatching.room.let_go()))
    dispatching = Dispatching(links, rng=random, on_poisonous=seen.count_poisonous)
    links.set_replicas(frozenset(replicas))
    reaper.has_suspects = lambda: bool(dispatching.dispatcher._probation._held)
    generator = ClusterGenerator(
        links,
        dispatching.dispatcher,
        dispatching.room,
        OpenDoor(),
        letter_of,
        SECRET,
        InlineExecutor(),
        seen,
        Running(),
    )
    await links.arrival()
    gate = asyncio.Semaphore(AT_ONCE)
    got: dict[Answer, Outcome] = {}
    async with asyncio.timeout(300):
        for outcome in await asyncio.gather(*(answered(generator, one, gate) for one in requests)):
            got |= outcome
    assert all(not replica.core.has_work() for replica in replicas.values())
    for replica in replicas.values():
        replica.core.check_integrity()
    await links.close()
    return got, seen, sum(replica.num_deaths for replica in replicas.values())


def alone(requests: list[Request]) -> dict[Answer, Outcome]:
    core = make_core(max_num_seqs=1, max_num_batched_tokens=512, enable_prefix_caching=False)
    expected: dict[Answer, Outcome] = {}
    for request in one_by_one(requests):
        expected |= outcomes(core, [request])
    return expected


async def check(monkeypatch: pytest.MonkeyPatch, count: int, pause: int = PAUSE) -> tuple[Deaths, int]:
    monkeypatch.setattr("cluster.links.MIN_BACKOFF_S", 0.0)
    requests = mixed_requests(count, seed=count, vocab_size=tiny_source().config.vocab_size, max_tokens=12)
    got, seen, num_deaths = await answered_by_mortals(requests, Random(count), pause)
    assert differing(alone(requests), got) == []
    return seen, num_deaths


async def test_fifty_answers_on_dying_replicas_come_out_as_undisturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, num_deaths = await check(monkeypatch, 50)
    assert num_deaths >= 3
    assert seen.resumed["lost"] >= 10


@pytest.mark.soak
async def test_a_thousand_answers_on_dying_replicas_come_out_as_undisturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, num_deaths = await check(monkeypatch, 1000, pause=2 * PAUSE)
    assert num_deaths >= 30
    assert seen.resumed["lost"] >= 100
