"""Routing policies: each one's rule in exact numbers, and what holds for all of them."""

from collections import Counter
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster.policies import POLICIES, routing_policy
from cluster.policies.affinity import Affinity
from cluster.policies.least_load import LeastLoad, work_ahead
from cluster.policies.power_of_two import PowerOfTwo
from cluster.policies.round_robin import RoundRobin
from cluster.policies.token_load import TokenLoad, recompute_cost
from cluster.routing import ReplicaLoad, Routing, RoutingPolicy, RoutingPrompt
from cluster.settings import ServeSettings

PROMPT = RoutingPrompt(1150, b"key")
NAMES: tuple[Routing, ...] = get_args(Routing)


def replica(
    replica_id: str = "a",
    *,
    queued: int = 0,
    in_flight: int = 0,
    running: int = 0,
    routed: int = 0,
    cached: int = 0,
) -> ReplicaLoad:
    return ReplicaLoad(
        replica_id=replica_id,
        queued_tokens=queued,
        in_flight_tokens=in_flight,
        num_running=running,
        cached_tokens=cached,
        num_in_flight=routed,
    )


class Options(Random):
    """Tells between which replicas the generator was asked to choose."""

    def __init__(self) -> None:
        super().__init__(0)
        self.replica_ids: set[str] = set()

    def choice(self, options: Any) -> Any:
        self.replica_ids = {one if isinstance(one, str) else one.replica_id for one in options}
        return options[0]


def choices(policy: RoutingPolicy, *replicas: ReplicaLoad, prompt: RoutingPrompt = PROMPT) -> set[str]:
    """All that the policy may choose."""
    rng = Options()
    chosen = policy.choose(replicas, prompt, rng)
    assert not rng.replica_ids or chosen in rng.replica_ids
    return rng.replica_ids or {chosen}


counts = st.integers(0, 64)
tokens = st.integers(0, 4000)
loads = st.builds(
    replica, queued=tokens, in_flight=tokens, running=counts, routed=counts, cached=st.integers(0, 1150)
)
fleets = st.lists(loads, min_size=1, max_size=8).map(
    lambda some: [replace(one, replica_id=f"r{number}") for number, one in enumerate(some)]
)
names = st.sampled_from(NAMES)
shares = st.floats(0, 1, exclude_max=True)
seeds = st.integers(0, 2**32)


# --- all policies ------------------------------------------------------------------------------


def test_every_name_of_the_setting_has_its_policy() -> None:
    assert set(POLICIES) == set(NAMES)
    for name in NAMES:
        assert ServeSettings(routing=name).routing == name
        assert type(routing_policy(name)) is POLICIES[name]


def test_two_gateways_share_no_state() -> None:
    assert routing_policy("round-robin") is not routing_policy("round-robin")


@given(name=names, fleet=fleets, share=shares, key=st.binary(max_size=80), seed=seeds)
def test_the_choice_is_always_a_candidate(
    name: Routing, fleet: list[ReplicaLoad], share: float, key: bytes, seed: int
) -> None:
    policy, rng = routing_policy(name), Random(seed)
    for _ in range(3):
        assert policy.choose(fleet, RoutingPrompt(1150, key, share), rng) in {one.replica_id for one in fleet}


@given(name=names, only=loads)
def test_a_single_candidate_is_chosen(name: Routing, only: ReplicaLoad) -> None:
    assert routing_policy(name).choose([only], PROMPT, Random(0)) == "a"


@pytest.mark.parametrize("name", NAMES)
def test_extreme_numbers_are_compared_like_others(name: Routing) -> None:
    fleet = [
        replica("a", queued=2**63, in_flight=2**63, running=2**31, cached=0),
        replica("b", cached=2**40),
        replica("c", queued=2**63, cached=2**40),
    ]
    policy = routing_policy(name)
    chosen = {policy.choose(fleet, RoutingPrompt(2**40, b"k", 0.999), Random(seed)) for seed in range(20)}
    assert chosen <= {"a", "b", "c"}
    if name in ("token-load", "least-load"):
        assert chosen == {"b"}


@pytest.mark.parametrize("name", NAMES)
def test_256_candidates_are_all_seen(name: Routing) -> None:
    busy = [replica(f"r{number:03}", queued=9, running=9) for number in range(256)]
    for index in (0, 100, 255):
        fleet = [*busy[:index], replica("best", cached=1000), *busy[index:]]
        if name in ("token-load", "least-load", "affinity"):
            assert routing_policy(name).choose(fleet, PROMPT, Random(0)) == "best"
    policy, rng = routing_policy(name), Random(1)
    chosen = {policy.choose(busy, RoutingPrompt(1150, b"key %d" % turn), rng) for turn in range(800)}
    assert len(chosen) > 230


@given(name=names, fleet=fleets, share=shares, key=st.sampled_from([b"", b"key"]), data=st.data())
def test_the_order_of_candidates_decides_nothing(
    name: Routing, fleet: list[ReplicaLoad], share: float, key: bytes, data: st.DataObject
) -> None:
    assume(name != "power-of-two")  # what it draws is by place
    shuffled = data.draw(st.permutations(fleet))
    prompt = RoutingPrompt(1150, key, share)
    assert choices(routing_policy(name), *shuffled, prompt=prompt) == choices(
        routing_policy(name), *fleet, prompt=prompt
    )


@given(name=st.sampled_from(["token-load", "least-load"]), fleet=fleets, share=shares, seed=seeds)
def test_more_work_elsewhere_never_drives_a_request_away(
    name: Routing, fleet: list[ReplicaLoad], share: float, seed: int
) -> None:
    prompt = RoutingPrompt(1150, b"key", share)
    chosen = routing_policy(name).choose(fleet, prompt, Random(seed))
    for more in ({"queued_tokens": 1}, {"in_flight_tokens": 1}, {"num_running": 1}, {"num_in_flight": 1}):
        busier = [one if one.replica_id == chosen else _with_more(one, more) for one in fleet]
        assert routing_policy(name).choose(busier, prompt, Random(seed + 1)) == chosen


def _with_more(load: ReplicaLoad, more: dict[str, int]) -> ReplicaLoad:
    return replace(load, **{field: getattr(load, field) + amount for field, amount in more.items()})


@given(fleet=fleets, share=shares, seed=seeds)
def test_more_cached_at_the_chosen_one_never_drives_a_request_away(
    fleet: list[ReplicaLoad], share: float, seed: int
) -> None:
    prompt = RoutingPrompt(1150, b"key", share)
    chosen = TokenLoad().choose(fleet, prompt, Random(seed))
    for more in (1, 10_000):
        better = [
            _with_more(one, {"cached_tokens": more}) if one.replica_id == chosen else one for one in fleet
        ]
        assert chosen in choices(TokenLoad(), *better, prompt=prompt)


# --- least load --------------------------------------------------------------------------------


def test_work_ahead_is_queued_and_routed_tokens_and_the_answers_to_come() -> None:
    assert work_ahead(replica(queued=100, in_flight=30, running=2, routed=1, cached=64), 128) == 130 + 3 * 128


def test_least_load_is_blind_to_the_cache() -> None:
    assert choices(LeastLoad(), replica("a", cached=1000, queued=1), replica("b")) == {"b"}


# --- token load --------------------------------------------------------------------------------


def test_a_token_computed_again_costs_itself_its_room_and_the_wait_of_who_is_there() -> None:
    assert recompute_cost(replica(), 1000, share=0.0) == 2000
    assert recompute_cost(replica(running=3, routed=1), 1000, share=0.0) == 6000
    assert recompute_cost(replica(running=3, routed=1), 1000, share=0.75) == 1500


def test_a_request_waits_at_its_prefix_until_to_compute_it_again_costs_less() -> None:
    home = replica("home", cached=960, running=15)  # 1,920 tokens ahead: as much as twice 960
    assert choices(TokenLoad(), home, replica("idle")) == {"home", "idle"}
    assert choices(TokenLoad(), replace(home, num_running=14), replica("idle")) == {"home"}
    assert choices(TokenLoad(), replace(home, queued_tokens=1), replica("idle")) == {"idle"}


def test_a_busy_replica_is_a_dearer_place_to_compute_a_prefix_again() -> None:
    home = replica("home", cached=960, running=20)
    assert choices(TokenLoad(), home, replica("idle")) == {"idle"}
    assert choices(TokenLoad(), home, replica("busy", running=5)) == {"home"}


def test_a_hot_prefix_spills_sooner() -> None:
    fleet = (replica("home", cached=960, running=6), replica("other", running=2))
    assert choices(TokenLoad(), *fleet) == {"home"}
    assert choices(TokenLoad(), *fleet, prompt=RoutingPrompt(1150, b"key", 0.9)) == {"other"}


def test_with_two_homes_a_prefix_goes_to_the_less_loaded_one() -> None:
    homes = (replica("a", cached=960, running=3), replica("b", cached=960, running=2))
    assert choices(TokenLoad(), *homes, replica("c", running=2)) == {"b"}


def test_requests_on_their_way_count_before_the_replica_has_told_of_them() -> None:
    homes = (replica("a", cached=960, routed=3), replica("b", cached=960, running=2))
    assert choices(TokenLoad(), *homes) == {"b"}


def test_the_weight_of_an_answer_is_an_argument() -> None:
    fleet = (replica("a", running=1), replica("b", queued=100))
    assert choices(TokenLoad(output_tokens=99), *fleet) == {"a"}
    assert choices(TokenLoad(output_tokens=101), *fleet) == {"b"}


@given(fleet=fleets, cached=st.integers(0, 1150), share=shares, seed=seeds)
def test_with_as_much_cached_everywhere_token_load_is_least_load(
    fleet: list[ReplicaLoad], cached: int, share: float, seed: int
) -> None:
    alike = [replace(one, cached_tokens=cached) for one in fleet]
    prompt = RoutingPrompt(1150, b"key", share)
    assert TokenLoad().choose(alike, prompt, Random(seed)) == LeastLoad().choose(alike, prompt, Random(seed))


# --- affinity ----------------------------------------------------------------------------------


def test_affinity_goes_where_most_is_cached_however_long_the_queue() -> None:
    fleet = (replica("a", cached=960, queued=10**6, running=500), replica("b", cached=896), replica("c"))
    assert choices(Affinity(), *fleet) == {"a"}


def test_without_claims_prompts_that_begin_alike_meet() -> None:
    fleet = [replica(one) for one in "abcd"]
    homes = {key: Affinity().choose(fleet, RoutingPrompt(9, b"%d" % key), Random(key)) for key in range(400)}
    assert all(
        Affinity().choose(fleet, RoutingPrompt(7, b"%d" % key), Random(0)) == home
        for key, home in homes.items()
    )
    assert all(60 < count < 140 for count in Counter(homes.values()).values())


def test_a_replica_that_goes_moves_only_its_own_prompts() -> None:
    fleet = [replica(one) for one in "abcd"]
    for key in range(100):
        prompt = RoutingPrompt(9, b"%d" % key)
        home = Affinity().choose(fleet, prompt, Random(0))
        if home != "d":
            assert Affinity().choose(fleet[:3], prompt, Random(0)) == home


def test_prompts_too_short_to_have_a_key_are_not_all_sent_to_one_replica() -> None:
    assert choices(Affinity(), replica("a"), replica("b"), prompt=RoutingPrompt(5)) == {"a", "b"}


# --- power of two, round robin -----------------------------------------------------------------


def test_power_of_two_takes_the_emptier_of_two_and_never_the_fullest() -> None:
    fleet = [replica("a", running=1), replica("b", routed=2), replica("c", running=3)]
    rng = Random(0)
    picks = Counter(PowerOfTwo().choose(fleet, PROMPT, rng) for _ in range(3000))
    assert picks["c"] == 0
    assert 1900 < picks["a"] < 2100, "a is in two of the three pairs"


def test_round_robin_goes_in_the_order_of_ids_whatever_the_order_of_candidates() -> None:
    policy = RoundRobin()
    fleets = [[replica("b"), replica("a"), replica("c")], [replica("c"), replica("b"), replica("a")]] * 3
    assert [policy.choose(fleet, PROMPT, Random(0)) for fleet in fleets] == list("abcabc")


def test_round_robin_goes_on_behind_a_replica_that_left_and_takes_a_new_one_in_turn() -> None:
    policy = RoundRobin()
    assert policy.choose([replica(one) for one in "ab"], PROMPT, Random(0)) == "a"
    assert policy.choose([replica(one) for one in "acd"], PROMPT, Random(0)) == "c"
    assert policy.choose([replica(one) for one in "acd"], PROMPT, Random(0)) == "d"
    assert policy.choose([replica(one) for one in "acd"], PROMPT, Random(0)) == "a"
