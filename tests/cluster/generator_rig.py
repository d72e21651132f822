"""A gateway's generator over fake replicas, with its waiting room and its books; a client that reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from cluster.cluster_generation import ClusterGeneration
from cluster.cluster_generator import ClusterGenerator
from cluster.generation import GenerationRequest, TextDelta
from cluster.running import Running
from cluster.waiting.config import WaitingConfig
from engine.counters import EngineCounters
from engine.request import RequestOutput, SamplingParams
from tenants.store import Account
from tenants.tenant import Tenant
from tenants.terms import Prices, Terms
from tests.builders_tenants import SECRET, a_key, a_tenant, switched_off
from tests.cluster.dispatching import DEFAULTS, Dispatching
from tests.cluster.fake_replica import FakeReplica, LinkRig, OpenDoor, settle
from tests.cluster.fakes import InlineExecutor

PROMPT = tuple(range(40))  # two full blocks of 16
BUSY = EngineCounters(1, 0, 1000, 100, 0, 0, 0.0, 0, 0, 0)
PRICES = Prices(input=1_000_000, output=1_000_000)
"""A micro-unit a token."""


def account_of(tenant_id: str, **terms: Any) -> Account:
    priced = Terms(input_price=PRICES.input, cached_input_price=0, output_price=PRICES.output)
    return Account(a_key(tenant_id=tenant_id), a_tenant(tenant_id), replace(priced, **terms))


class Seen:
    """What was counted."""

    def __init__(self, count_discarded: Callable[[int], None]) -> None:
        self.count_discarded = count_discarded
        self.resumed: list[str] = []
        self.num_poisonous = 0
        self.predictions: list[tuple[int, int]] = []

    def count_resumed(self, reason: str) -> None:
        self.resumed.append(reason)

    def count_poisonous(self) -> None:
        self.num_poisonous += 1

    def count_prediction(self, predicted_tokens: int, actual_tokens: int) -> None:
        self.predictions.append((predicted_tokens, actual_tokens))


class Frozen:
    """A record in which every tenant was frozen just now."""

    async def change_count(self) -> int:
        return 1

    async def get_tenant(self, tenant_id: str) -> Tenant | None:
        return switched_off(a_tenant(tenant_id))


class Rig(LinkRig):
    """A generator over fake replicas; a token's text is the character of its id."""

    def __init__(self, config: WaitingConfig = DEFAULTS) -> None:
        super().__init__()
        self.next_replica_s: float | None = None
        self.admission = OpenDoor()
        self.running = Running()
        self.observer = Seen(self._discard)
        self.dispatching = Dispatching(
            self.links,
            lambda: self.now,
            on_poisonous=self.observer.count_poisonous,
            config=config,
            next_replica_s=lambda: self.next_replica_s,
        )
        self.on_credit = self.dispatching.room.let_go
        self.generator = ClusterGenerator(
            self.links,
            self.dispatching.dispatcher,
            self.dispatching.room,
            self.admission,
            lambda token_id: chr(token_id).encode(),
            SECRET,
            InlineExecutor(),
            self.observer,
            self.running,
            clock=lambda: self.now,
        )
        self.demand = self.generator.demand

    async def open(self, *replica_ids: str) -> Rig:
        self.links.set_replicas(frozenset(replica_ids))
        await settle()
        return self

    async def start(self, request_id: str = "r", **fields: Any) -> ClusterGeneration:
        defaults: dict[str, Any] = {
            "account": account_of("acme"),
            "prompt_token_ids": PROMPT,
            "sampling": SamplingParams(max_tokens=8),
            "deadline": 60.0,
        }
        return await self.generator.start(GenerationRequest(request_id=request_id, **(defaults | fields)))

    def of(self, generation: ClusterGeneration) -> FakeReplica:
        """The replica that serves it."""
        return self.replicas[generation.replica_id]


def tokens(
    text: str, first: int = 0, *, sibling: int = 0, finish: str | None = None, attempt: int = 0, **fields: Any
) -> RequestOutput:
    ids = tuple(map(ord, text))
    return RequestOutput(f"r-{attempt}", attempt, sibling, first, ids, finish_reason=finish, **fields)  # type: ignore[arg-type]


async def read(generation: ClusterGeneration) -> list[TextDelta]:
    return [delta async for delta in generation.deltas()]
