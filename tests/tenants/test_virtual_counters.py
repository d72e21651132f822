"""Virtual counters against a model that forgets nobody, and their bound on a plain server."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import permutations
from random import Random
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.virtual_counters import VirtualCounters

WEIGHTS = {"a": 1, "b": 1, "c": 2, "d": 4}


class Event(NamedTuple):
    kind: Literal["arrive", "leave", "charge"]
    flow_id: str
    tokens: int


events = st.lists(
    st.builds(
        Event,
        st.sampled_from(["arrive", "leave", "charge", "charge"]),
        st.sampled_from(sorted(WEIGHTS)),
        st.integers(0, 100),
    )
)


@dataclass
class Model:
    """The definition, with every counter kept for ever."""

    counters: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WEIGHTS, 0.0))
    waiting: Counter[str] = field(default_factory=Counter)
    last: str | None = None

    def arrived(self, flow_id: str) -> None:
        if not self.waiting[flow_id]:
            at = [self.counters[one] for one in +self.waiting or {self.last} if one]
            self.counters = {one: max(tokens, min(at, default=0.0)) for one, tokens in self.counters.items()}
        self.waiting[flow_id] += 1

    def left(self, flow_id: str) -> None:
        self.waiting[flow_id] -= 1
        self.last = flow_id

    def charge(self, flow_id: str, weight: int, tokens: float) -> None:
        self.counters[flow_id] += tokens / weight


@given(events)
def test_counters_are_those_of_a_model_that_keeps_them_all(events: list[Event]) -> None:
    counters, model = VirtualCounters(), Model()
    for kind, flow_id, tokens in events:
        if kind == "leave" and not model.waiting[flow_id]:
            continue
        for each in (counters, model):
            if kind == "arrive":
                each.arrived(flow_id)
            elif kind == "leave":
                each.left(flow_id)
            else:
                each.charge(flow_id, WEIGHTS[flow_id], tokens)
        assert {one: counters.of(one) for one in WEIGHTS} == model.counters
        assert counters.is_anyone_waiting == bool(+model.waiting)


def counters_of(**at: int) -> VirtualCounters:
    """Flows that wait, at these counters."""
    counters = VirtualCounters()
    for flow_id in at:
        counters.arrived(flow_id)
    for flow_id, tokens in at.items():
        counters.charge(flow_id, 1, tokens)
    return counters


def test_service_counts_by_weight() -> None:
    counters = VirtualCounters()
    counters.charge("paid", 4, 100)
    counters.charge("free", 1, 100)
    assert (counters.of("paid"), counters.of("free")) == (25, 100)


def test_who_comes_starts_at_the_least_of_those_that_wait() -> None:
    counters = counters_of(a=300, b=200)
    counters.arrived("new")
    assert counters.of("new") == 200


def test_who_only_runs_says_nothing_about_where_others_start() -> None:
    counters = counters_of(a=300, slow=10)
    counters.left("slow")
    counters.arrived("new")
    assert counters.of("new") == 300


def test_who_comes_to_an_empty_line_starts_where_the_last_one_is_now() -> None:
    counters = counters_of(a=300)
    counters.left("a")
    counters.charge("a", 1, 50)
    counters.arrived("new")
    assert counters.of("new") == 350


def test_who_was_served_more_is_not_lowered() -> None:
    counters = counters_of(a=10, b=500)
    counters.left("b")
    counters.arrived("b")
    assert counters.of("b") == 500


def test_a_second_request_of_a_flow_that_waits_lifts_nothing() -> None:
    counters = counters_of(a=300, b=10)
    counters.arrived("b")
    counters.left("b")
    counters.arrived("b")
    assert counters.of("b") == 10


def test_time_away_gives_no_claim() -> None:
    counters = counters_of(a=100, b=100)
    counters.left("b")
    counters.charge("a", 1, 10_000)
    counters.arrived("b")
    assert counters.of("b") == counters.of("a")


def test_only_those_that_wait_or_are_ahead_are_kept() -> None:
    counters = counters_of(heavy=50)
    for number in range(10_000):
        counters.arrived(f"t{number}")
        counters.charge(f"t{number}", 1, 1)
        counters.left(f"t{number}")
        counters.charge("heavy", 1, 1)
    counters.arrived("heavy")
    assert len(counters) < 10


@dataclass
class Running:
    flow_id: str
    to_make: int


@dataclass
class Server:
    """So many seats; who runs makes a token a step. Input is charged when it is picked."""

    random: Random
    num_seats: int
    counters: VirtualCounters = field(default_factory=VirtualCounters)
    waiting: defaultdict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    running: list[Running] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    """The bound's D, as it was at the worst."""

    def add(self, flow_id: str, num_input: int, num_output: int) -> None:
        self.waiting[flow_id].append((num_input, num_output))
        self.counters.arrived(flow_id)

    def step(self) -> None:
        while len(self.running) < self.num_seats and any(self.waiting.values()):
            self._pick(min((one for one, own in self.waiting.items() if own), key=self.counters.of))
        for one in list(self.running):
            self._serve(one.flow_id, 1)
            one.to_make -= 1
            if one.to_make == 0:
                self.running.remove(one)

    def _pick(self, flow_id: str) -> None:
        num_input, num_output = self.waiting[flow_id].pop(0)
        self.counters.left(flow_id)
        self.running.append(Running(flow_id, num_output))
        to_make = sum(one.to_make for one in self.running if one.flow_id == flow_id)
        self.most[flow_id] = max(self.most[flow_id], num_input + to_make)
        self._serve(flow_id, num_input)

    def _serve(self, flow_id: str, tokens: int) -> None:
        self.served[flow_id] += tokens
        self.counters.charge(flow_id, WEIGHTS[flow_id], tokens)


@pytest.mark.parametrize("seed", range(20))
def test_two_flows_that_wait_are_never_further_apart_than_the_bound(seed: int) -> None:
    random = Random(seed)
    server = Server(random, num_seats=random.randint(1, 8))
    least: dict[tuple[str, str], float] = {}
    furthest: Counter[tuple[str, str]] = Counter()
    for _ in range(2000):
        for flow_id in WEIGHTS:
            if random.random() < random.choice([0.02, 0.3]):
                server.add(flow_id, random.randint(1, 50), random.randint(1, 20))
        server.step()
        for pair in permutations(WEIGHTS, 2):
            if not all(server.waiting[one] for one in pair):
                least.pop(pair, None)
                continue
            lead = server.served[pair[0]] / WEIGHTS[pair[0]] - server.served[pair[1]] / WEIGHTS[pair[1]]
            least[pair] = min(lead, least.get(pair, lead))
            furthest[pair] = max(furthest[pair], lead - least[pair])
    assert any(furthest.values())
    for pair, gap in furthest.items():
        assert gap <= sum(server.most[one] / WEIGHTS[one] for one in pair)
