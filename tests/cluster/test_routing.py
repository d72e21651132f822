"""Routing: what a policy is told, and the choice of the least."""

from random import Random

from cluster.routing import ReplicaLoad, choose_least


def load(
    replica_id: str, queued_tokens: int = 0, *, num_running: int = 0, num_in_flight: int = 0
) -> ReplicaLoad:
    return ReplicaLoad(
        replica_id=replica_id,
        queued_tokens=queued_tokens,
        in_flight_tokens=0,
        num_running=num_running,
        num_in_flight=num_in_flight,
    )


def queue(replica: ReplicaLoad) -> int:
    return replica.queued_tokens


def test_requests_that_are_on_their_way_are_there() -> None:
    assert load("a", num_running=2, num_in_flight=3).num_requests == 5


def test_the_least_is_chosen() -> None:
    replicas = [load("a", 500), load("b", 20), load("c", 40)]
    assert choose_least(replicas, queue, Random(0)).replica_id == "b"


def test_ties_are_spread_evenly_and_by_seed() -> None:
    replicas = [load("a"), load("b"), load("c", 1)]

    def picks(seed: int) -> list[str]:
        rng = Random(seed)
        return [choose_least(replicas, queue, rng).replica_id for _ in range(1000)]

    assert picks(7) == picks(7) != picks(8)
    assert 400 < picks(7).count("a") < 600
    assert picks(7).count("c") == 0
