"""The gateway's numbers: exact values, on a clock that is told, and a bounded number of series."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from cluster.generation import TextDelta
from cluster.telemetry import MAX_TENANT_LABELS, Telemetry
from engine.counters import EngineCounters
from tests.cluster.fakes import FakeGateway, Gate, settle

TEXT = "/v1/completions"
BODY = {"model": "tiny", "prompt": "hello"}


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"headrace_{name}", labels)


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
    assert value(registry, "request_queue_time_seconds_sum") == 0.5
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
    counters = EngineCounters(
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
    replicas = {"r1": counters}
    registry = Telemetry(lambda: replicas).registry
    expected = {
        "kv_cache_usage_ratio": 0.25,
        "kv_waste_ratio": 0.125,
        "requests_running": 2,
        "requests_waiting": 3,
        "preemptions_total": 4,
        "prefix_cache_queries_tokens_total": 500,
        "prefix_cache_hits_tokens_total": 64,
    }
    assert {name: value(registry, name, replica="r1") for name in expected} == expected
    replicas.clear()
    assert value(registry, "requests_running", replica="r1") is None


def test_a_pool_without_blocks_is_not_in_use() -> None:
    registry = Telemetry(lambda: {"r1": EngineCounters(0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0)}).registry
    assert value(registry, "kv_cache_usage_ratio", replica="r1") == 0
