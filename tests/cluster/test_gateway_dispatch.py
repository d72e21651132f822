"""A gateway's queue, room and choice put together: what its settings and its links make of it."""

from __future__ import annotations

from cluster.admission_windows import FLOOR
from cluster.gateway_dispatch import GatewayDispatch, waiting_config
from cluster.settings import ServeSettings
from cluster.telemetry import Telemetry
from cluster.waiting_metrics import GAUGES
from engine.request import Timing
from tests.cluster.fake_replica import LinkRig, settle


def test_the_settings_say_how_long_and_how_many_may_wait() -> None:
    settings = ServeSettings(interactive_deadline_s=3.0, batch_deadline_s=60.0, max_waiting=7)
    config = waiting_config(settings)
    assert (config.interactive_deadline_s, config.batch_deadline_s, config.max_waiting) == (3.0, 60.0, 7)


async def test_its_gauges_are_all_there_from_the_start_and_zero() -> None:
    rig, telemetry = LinkRig(), Telemetry(dict)
    dispatch = GatewayDispatch(rig.links, ServeSettings(), telemetry, lambda: None)
    dispatch.start()
    for name in GAUGES:
        assert telemetry.registry.get_sample_value(f"headrace_{name}") == 0, name
    assert dispatch.waiting_tokens == 0
    await dispatch.close()
    await rig.links.close()


async def test_what_was_warmed_is_counted_from_the_start_as_many_prefixes_as_are_set() -> None:
    rig, telemetry = LinkRig(), Telemetry(dict)
    dispatch = GatewayDispatch(rig.links, ServeSettings(warm_prefixes=3), telemetry, lambda: None)
    for name in ("warming_requests", "warmed_tokens"):
        assert telemetry.registry.get_sample_value(f"headrace_{name}_total") == 0, name
    assert dispatch.warming._plans._num_prefixes == 3
    await dispatch.close()
    await rig.links.close()


async def test_a_start_is_expected_while_the_launcher_says_so() -> None:
    rig = LinkRig()
    until: list[float | None] = [None, 12.0]
    dispatch = GatewayDispatch(rig.links, ServeSettings(), Telemetry(dict), lambda: until[0])
    assert not dispatch.room.is_start_expected
    until.pop(0)
    assert dispatch.room.is_start_expected


async def test_a_start_is_expected_where_the_first_request_brings_it_about() -> None:
    settings = ServeSettings(min_replicas=0, max_replicas=1)
    dispatch = GatewayDispatch(LinkRig().links, settings, Telemetry(dict), lambda: None)
    assert dispatch.room.is_start_expected


async def test_each_of_several_gateways_reckons_with_its_part() -> None:
    rig, telemetry = LinkRig(), Telemetry(dict)
    dispatch = GatewayDispatch(rig.links, ServeSettings(gateways=4), telemetry, lambda: None)
    rig.links.set_replicas(frozenset({"a"}))
    rig.replica("a").is_open = False
    await settle()
    rig.replica("a").say(credit=FLOOR)
    await settle()
    await dispatch.room.look()
    assert telemetry.registry.get_sample_value("headrace_other_gateways_ratio") == 0.75
    await dispatch.close()
    await rig.links.close()


async def test_what_never_ran_says_nothing_of_how_long_seats_are_held() -> None:
    dispatch = GatewayDispatch(LinkRig().links, ServeSettings(), Telemetry(dict), lambda: None)
    rates = dispatch.room._queue.estimator.rates
    before = rates._seat_s.value
    dispatch.hear_timing(Timing(3.0, 0.0, 0.0, 0.0, 0))
    assert rates._seat_s.value == before
    dispatch.hear_timing(Timing(3.0, 1.0, 2.0, 0.5, 1))
    assert rates._seat_s.value < before
