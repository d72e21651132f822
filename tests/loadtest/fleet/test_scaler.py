"""Those who stand beside production's policy, and what is written down of an order."""

from __future__ import annotations

from cluster.autoscaling.demand import Demand
from cluster.autoscaling.policy import Decision, FleetView
from loadtest.fleet.scaler import Recorded, ScalingOrder, Unaware

NOTHING = Demand(0.0, 0.0, 0, {})
FLEET = FleetView(target=2, num_serving=1, etas_s=[4.0], num_leaving=0, cold_start_s=90.0)


class Told:
    """Remembers what it was told, and wants `target` replicas."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.fleet: FleetView | None = None

    def decide(self, now: float, demand: Demand, fleet: FleetView) -> Decision:
        self.fleet = fleet
        return Decision(self.target, "so be it")


def test_who_is_unaware_of_the_cold_start_is_told_all_the_rest() -> None:
    told = Told(5)
    assert Unaware(told).decide(1.0, NOTHING, FLEET) == Decision(5, "so be it")
    assert told.fleet == FLEET._replace(cold_start_s=0.0)


def test_what_changes_nothing_is_no_order() -> None:
    told = Told(2)
    recorded = Recorded(told)
    for now, target in ((1.0, 2), (2.0, 5), (3.0, 2), (4.0, 1)):
        told.target = target
        assert recorded.decide(now, NOTHING, FLEET).target == target
    assert recorded.orders == [ScalingOrder(2.0, 2, 5), ScalingOrder(4.0, 2, 1)]
