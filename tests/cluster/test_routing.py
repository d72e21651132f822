"""Routing: least token load, seeded ties."""

from random import Random

from cluster.routing import ReplicaLoad, choose_replica, token_load


def load(
    replica_id: str = "a", *, queued: int = 0, in_flight: int = 0, running: int = 0, cached: int = 0
) -> ReplicaLoad:
    return ReplicaLoad(
        replica_id=replica_id,
        queued_tokens=queued,
        in_flight_tokens=in_flight,
        num_running=running,
        cached_tokens=cached,
    )


def test_load_is_uncached_prompt_plus_work_already_there() -> None:
    assert (
        token_load(load(queued=100, in_flight=30, running=2, cached=64), prompt_tokens=80)
        == 16 + 100 + 30 + 32
    )


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    assert token_load(load(cached=64), prompt_tokens=64) == 1


def test_the_least_loaded_replica_is_chosen() -> None:
    replicas = [load("a", queued=500), load("b", queued=20), load("c", running=40)]
    assert choose_replica(replicas, 10, Random(0)) == "b"


def test_cached_tokens_win_over_a_short_queue() -> None:
    replicas = [load("a"), load("b", queued=100, cached=400)]
    assert choose_replica(replicas, 500, Random(0)) == "b"


def test_nobody_there_is_none() -> None:
    assert choose_replica([], 10, Random(0)) is None


def test_ties_are_spread_evenly_and_by_seed() -> None:
    replicas = [load("a"), load("b"), load("c", queued=1)]
    picks = [choose_replica(replicas, 10, rng) for rng in [Random(7)] for _ in range(1000)]
    assert picks == [choose_replica(replicas, 10, rng) for rng in [Random(7)] for _ in range(1000)]
    assert 400 < picks.count("a") < 600
    assert picks.count("c") == 0
