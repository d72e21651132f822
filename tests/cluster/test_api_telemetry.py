"""The gateway's numbers: exact values, on a clock that is told, and a bounded number of series."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from cluster.generation import TextDelta, Usage
from cluster.link import LinkDown, LinkMessage
from cluster.link_events import LinkEvents
from cluster.links import Links
from cluster.telemetry import MAX_TENANT_LABELS, Telemetry
from cluster.token_inbox import TokenInbox
from engine.counters import EngineCounters
from engine.prefix_stats import MISS_REASONS, PrefixStats
from engine.request import RequestOutput, Timing
from engine.tape import ANY_PROMPT
from tests.cluster.fake_replica import FakeReplica, request, row
from tests.cluster.fakes import FakeGateway, Gate, settle
from tests.cluster.in_process import in_process, tape

TEXT = "/v1/completions"
BODY = {"model": "tiny", "prompt": "hello"}


BUSY = EngineCounters(
    requests_running=2,
    requests_waiting=3,
    queued_tokens=0,
    blocks_total=100,
    blocks_in_use=25,
    blocks_evictable=0,
    kv_waste_ratio=0.125,
    preemptions_total=4,
    prefix_queries_tokens_total=500,
    prefix_hits_tokens_total=64,
)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"headrace_{name}", labels)


async def test_no_metric_is_told_twice_as_a_time_of_creation(gateway: FakeGateway) -> None:
    gateway.generator.script = [TextDelta("a", "stop")]
    await gateway.post(TEXT, BODY)
    assert b"_created" not in gateway.telemetry.render()


async def test_a_streams_latencies_are_what_its_client_waits(gateway: FakeGateway) -> None:
    first, second = Gate(), Gate()
    gateway.generator.script = [first, TextDelta(""), TextDelta("a"), second, TextDelta("b", "stop")]
    call = gateway.begin("POST", TEXT, body={**BODY, "stream": True})
    await gateway.time.advance(2)
    first.open()
    await gateway.time.advance(0.25)
    second.open()
    await call.finished()
    registry = gateway.telemetry.registry
    assert value(registry, "time_to_first_token_seconds_sum", tenant="acme") == 2.0
    assert value(registry, "inter_token_latency_seconds_sum") == 0.25
    assert value(registry, "inter_token_latency_seconds_count") == 1
    assert value(registry, "e2e_request_latency_seconds_sum", tenant="acme") == 2.25
    assert value(registry, "prompt_tokens_total", tenant="acme") == 5
    assert value(registry, "generation_tokens_total", tenant="acme") == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_one_that_was_left_counts_its_tokens_and_no_whole_latency(
    gateway: FakeGateway, stream: bool
) -> None:
    gateway.generator.script = [TextDelta("a"), Gate()]
    call = gateway.begin("POST", TEXT, body={**BODY, "stream": stream})
    await settle()
    assert gateway.telemetry.num_in_flight == 1
    call.leave()
    await call.finished()
    registry = gateway.telemetry.registry
    assert gateway.telemetry.num_in_flight == 0
    assert value(registry, "generation_tokens_total", tenant="acme") == 1
    assert value(registry, "e2e_request_latency_seconds_count", tenant="acme") is None
    assert value(registry, "requests_total", code="499", route=TEXT) == 1


async def test_requests_are_counted_by_status_and_template_and_junk_is_one(gateway: FakeGateway) -> None:
    await gateway.post(TEXT, BODY)
    await gateway.post(TEXT, b"{")
    for path in ("/a", "/b", "/c"):
        await gateway.call("GET", path)
    await gateway.call("GET", "/v1/models/junk", scope=None)
    registry = gateway.telemetry.registry
    assert value(registry, "requests_total", code="200", route=TEXT) == 1
    assert value(registry, "requests_total", code="400", route=TEXT) == 1
    assert value(registry, "requests_total", code="404", route="other") == 3
    assert value(registry, "requests_total", code="401", route="/v1/models/{model:path}") == 1


async def test_junk_makes_no_series(gateway: FakeGateway) -> None:
    async def num_series() -> int:
        text = (await gateway.call("GET", "/metrics", scope="metrics")).body.decode()
        return sum(len(family.samples) for family in text_string_to_metric_families(text))

    async def junk(number: int) -> None:
        await gateway.call("GET", f"/{number}")
        await gateway.post(TEXT, {**BODY, "model": f"model-{number}"})
        await gateway.post(TEXT, BODY, headers={"authorization": f"Bearer {number}"})

    await junk(0)
    await num_series()
    before = await num_series()
    for number in range(1, 50):
        await junk(number)
    assert await num_series() == before


def test_tenants_beyond_the_bound_share_a_label() -> None:
    telemetry = Telemetry(dict)
    for number in range(MAX_TENANT_LABELS + 5):
        telemetry.observe_first_token(f"tenant-{number}", 1.0)
    registry = telemetry.registry
    assert value(registry, "time_to_first_token_seconds_count", tenant="other") == 5
    assert value(registry, "time_to_first_token_seconds_count", tenant="tenant-0") == 1
    assert value(registry, "time_to_first_token_seconds_count", tenant=f"tenant-{MAX_TENANT_LABELS}") is None


def test_the_replicas_state_is_as_last_told_and_goes_with_them() -> None:
    replicas = {"r1": BUSY}
    registry = Telemetry(lambda: replicas).registry
    expected = {
        "kv_cache_usage_ratio": 0.25,
        "kv_waste_ratio": 0.125,
        "requests_running": 2,
        "requests_waiting": 3,
    }
    assert {name: value(registry, name, replica="r1") for name in expected} == expected
    replicas.clear()
    assert value(registry, "requests_running", replica="r1") is None


def test_what_grows_in_a_replica_is_told_by_the_replica_alone() -> None:
    """Two gateways would tell it twice, and a sum over all processes would be wrong."""
    registry = Telemetry(lambda: {"r1": BUSY}).registry
    grown = {family.name for family in registry.collect() if family.type == "counter"}
    assert grown.isdisjoint(
        f"headrace_{name}" for name in ("preemptions", "prefix_cache_queries_tokens", "evictions")
    )
    told = {
        family.name for family in registry.collect() if any("replica" in s.labels for s in family.samples)
    }
    assert {family.type for family in registry.collect() if family.name in told} == {"gauge"}


def timing_sums(registry: CollectorRegistry) -> dict[str, tuple[float | None, float | None]]:
    """(number, sum) of each part's histogram."""
    return {
        part: tuple(value(registry, f"request_{part}_time_seconds_{what}") for what in ("count", "sum"))  # type: ignore[misc]
        for part in ("queue", "prefill", "decode", "preempted")
    }


def test_where_a_request_s_time_went_is_observed_part_by_part() -> None:
    telemetry = Telemetry(dict)
    telemetry.observe_timing(Timing(0.5, 1.5, 4.0, 2.5, 1, 30))
    assert timing_sums(telemetry.registry) == {
        "queue": (1, 0.5),
        "prefill": (1, 1.5),
        "decode": (1, 4.0),
        "preempted": (1, 2.5),
    }


def test_parts_that_were_not_reached_are_left_out_and_no_preemption_is_zero() -> None:
    telemetry = Telemetry(dict)
    telemetry.observe_timing(Timing(30.0, 0.0, 0.0, 0.0, 0))
    telemetry.observe_timing(Timing(1.0, 2.0, 0.0, 0.0, 0))
    assert timing_sums(telemetry.registry) == {
        "queue": (2, 31.0),
        "prefill": (1, 2.0),
        "decode": (0, 0.0),
        "preempted": (2, 0.0),
    }


@pytest.mark.parametrize("part", ["queue", "prefill", "decode", "preempted"])
def test_a_request_s_times_are_told_apart_from_1_ms_to_5_min(part: str) -> None:
    telemetry = Telemetry(dict)
    name = f"request_{part}_time_seconds_bucket"
    telemetry.observe_timing(Timing(0.002, 0.002, 0.002, 0.002, 1))
    telemetry.observe_timing(Timing(299.0, 299.0, 299.0, 299.0, 1))
    numbers = [value(telemetry.registry, name, le=le) for le in ("0.001", "0.0025", "120.0", "300.0")]
    assert numbers == [0, 1, 1, 2]


async def test_the_times_of_every_answer_that_ended_are_observed_once_whoever_still_waits() -> None:
    """A client that left, and a stop string that the engine knows nothing of, end by abort."""
    telemetry = Telemetry(dict)
    replica = FakeReplica("a")
    links = Links(lambda _: replica, lambda: 0.0, LinkEvents(on_timing=telemetry.observe_timing))
    links.set_replicas(frozenset({"a"}))
    await settle()
    inbox = await links.submit("a", request("waits"), asyncio.Event())
    assert isinstance(inbox, TokenInbox)
    replica.say(row("waits", 0, 1), ended("waits", Timing(1.0, 0.5, 0.25, 0.0, 0)))
    replica.say(ended("left", Timing(30.0, 0.0, 0.0, 0.0, 0)))
    await settle()
    assert timing_sums(telemetry.registry)["queue"] == (2, 31.0)
    await links.close()


async def test_a_replica_that_leaves_is_lost_only_if_its_answers_had_not_ended() -> None:
    telemetry = Telemetry(dict)
    replicas = {name: FakeReplica(name) for name in ("ends", "dies")}
    links = Links(
        lambda replica_id: replicas[replica_id], lambda: 0.0, LinkEvents(on_lost=telemetry.count_lost_link)
    )
    links.set_replicas(frozenset(replicas))
    await settle()
    for name in replicas:
        await links.submit(name, request(name), asyncio.Event())
    links.set_replicas(frozenset())
    replicas["ends"].say(row("ends", 0, 5, finish="stop"))
    await settle()
    replicas["ends"].die()
    await settle()
    assert value(telemetry.registry, "lost_links_total") == 0
    replicas["dies"].die()
    await settle()
    assert value(telemetry.registry, "lost_links_total") == 1
    await links.close()


@pytest.mark.parametrize("has_finished", [True, False])
async def test_a_replica_that_said_that_it_leaves_is_lost_only_with_answers(has_finished: bool) -> None:
    telemetry = Telemetry(dict)
    replica = FakeReplica("a")
    links = Links(lambda _: replica, lambda: 0.0, LinkEvents(on_lost=telemetry.count_lost_link))
    links.set_replicas(frozenset({"a"}))
    await settle()
    await links.submit("a", request("r"), asyncio.Event())
    replica.say(is_leaving=True)
    if has_finished:
        replica.say(row("r", 0, 5, finish="stop"), is_leaving=True)
    replica.die()
    await settle()
    assert value(telemetry.registry, "lost_links_total") == (not has_finished)
    await links.close()


async def test_a_link_that_breaks_is_counted_once_and_one_that_was_never_there_is_not() -> None:
    telemetry = Telemetry(dict)
    replicas = {name: FakeReplica(name) for name in ("broken", "leaving")}
    replicas["never there"] = Unreachable("never there")
    links = Links(
        lambda replica_id: replicas[replica_id], lambda: 0.0, LinkEvents(on_lost=telemetry.count_lost_link)
    )
    links.set_replicas(frozenset(replicas))
    await settle()
    replicas["broken"].die()
    links.set_replicas(frozenset({"broken", "never there"}))
    await settle()
    assert value(telemetry.registry, "lost_links_total") == 1
    await links.close()
    assert value(telemetry.registry, "lost_links_total") == 1


class Unreachable(FakeReplica):
    async def attach(self) -> AsyncIterator[LinkMessage]:
        raise LinkDown("refused")
        yield


def ended(request_id: str, timing: Timing) -> RequestOutput:
    return RequestOutput(request_id, 0, 0, 1, (), finish_reason="abort", timing=timing)


def test_a_pool_without_blocks_is_not_in_use() -> None:
    registry = Telemetry(lambda: {"r1": EngineCounters(0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0)}).registry
    assert value(registry, "kv_cache_usage_ratio", replica="r1") == 0


def misses(registry: CollectorRegistry, tenant: str) -> dict[str, float | None]:
    return {
        reason: value(registry, "prefix_miss_tokens_total", tenant=tenant, reason=reason)
        for reason in MISS_REASONS
    }


def test_each_prompt_token_is_a_hit_or_a_miss_with_a_reason_by_tenant() -> None:
    telemetry = Telemetry(dict)
    telemetry.count_usage("acme", Usage(100, 5, 16, PrefixStats(16, 32, 48, 0, 4, diverged_at=50)))
    telemetry.count_usage("acme", Usage(100, 5, 0, PrefixStats(0, 0, 0, 96, 4)))
    telemetry.count_usage("other tenant", Usage(20, 5, 0, PrefixStats(0, 0, 16, 0, 4, diverged_at=3)))
    registry = telemetry.registry
    acme = misses(registry, "acme")
    assert acme == {"cold": 96, "evicted": 32, "diverged": 48, "below_block": 8}
    assert misses(registry, "other tenant") == {"cold": 0, "evicted": 0, "diverged": 16, "below_block": 4}
    assert value(registry, "cached_prompt_tokens_total", tenant="acme") == 16
    assert value(registry, "prompt_tokens_total", tenant="acme") == 16 + sum(filter(None, acme.values()))
    assert value(registry, "prefix_diverged_at_tokens_sum", tenant="acme") == 50
    assert value(registry, "prefix_diverged_at_tokens_count", tenant="acme") == 1


def test_a_prompt_that_was_not_looked_up_or_did_not_tell_yet_missed_nothing() -> None:
    telemetry = Telemetry(dict)
    telemetry.count_usage("acme", Usage(100, 0, 0))
    telemetry.count_usage("acme", Usage(100, 5, 96))
    assert misses(telemetry.registry, "acme") == dict.fromkeys(MISS_REASONS)
    assert value(telemetry.registry, "cached_prompt_tokens_total", tenant="acme") == 96


async def test_the_misses_of_a_tenant_come_with_the_answers_of_its_replica() -> None:
    """A token a character, in blocks of four."""
    async with in_process([tape({ANY_PROMPT: b"ok"})]) as gateway:
        for prompt in ("a prompt of more", "a prompt of more", "a prompt of other words"):
            await gateway.post(TEXT, BODY | {"prompt": prompt})
        found = misses(gateway.telemetry.registry, "acme")
        assert found == {"cold": 12, "evicted": 0, "diverged": 8, "below_block": 4 + 4 + 3}
        assert value(gateway.telemetry.registry, "cached_prompt_tokens_total", tenant="acme") == 12 + 12
        assert value(gateway.telemetry.registry, "prefix_diverged_at_tokens_sum", tenant="acme") == 12


def test_steering_is_told_as_thought_and_as_it_was() -> None:
    telemetry = Telemetry(dict)
    for predicted, actual in ((64, 64), (128, 48), (0, 16)):
        telemetry.count_prediction(predicted, actual)
    registry = telemetry.registry
    assert value(registry, "predicted_cached_tokens_total") == 192
    assert value(registry, "mispredicted_cached_tokens_total", direction="over") == 80
    assert value(registry, "mispredicted_cached_tokens_total", direction="under") == 16


def test_the_index_is_up_as_its_last_look_up_went() -> None:
    telemetry = Telemetry(dict)
    assert b"headrace_prefix_index_up" not in telemetry.render()
    for is_ok in (True, False):
        telemetry.count_lookup(is_ok)
        assert value(telemetry.registry, "prefix_index_up") == is_ok
    for result in ("ok", "failed"):
        assert value(telemetry.registry, "prefix_index_lookups_total", result=result) == 1


def test_resumptions_are_counted_by_reason() -> None:
    telemetry = Telemetry(dict)
    for reason in ("lost", "left", "lost", "failed_step"):
        telemetry.count_resumed(reason)
    telemetry.count_poisonous()
    assert value(telemetry.registry, "resumed_requests_total", reason="lost") == 2
    assert value(telemetry.registry, "poisonous_requests_total") == 1
