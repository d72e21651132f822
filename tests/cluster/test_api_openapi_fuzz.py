"""Every route does what its description says, whatever is sent to it: right, wrong, or without a key.

Schemathesis makes the requests from the description and holds the answers against it. What a schema
cannot say of a right request (two fields that go together, ids of the vocabulary) is mended before.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from msgspec import structs
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.core.parameters import ParameterLocation

from cluster.generation import GenerationRequest
from cluster.rollout.rollout import Rollout
from engine.tokenizer import ByteTokenizer
from tenants.api_key import hash_key, new_key
from tenants.audit import LAUNCHER
from tenants.terms import Terms
from tenants.tier import Tier
from tests.builders_tenants import SECRET, a_key, a_tenant
from tests.cluster.fakes import FakeGeneration, FakeGenerator, MemoryRollouts, say
from tests.cluster.office import SCOPES, Office, shared_gateway

KEY = new_key()
LONG = 2**20
VOCABULARY = ByteTokenizer().vocab_size
NAMED_BY = {"/admin/v1/tiers": "name", "/admin/v1/tenants": "tenant_id"}
"""What each second new one has a name of its own in."""
_serial = itertools.count()

schemathesis.openapi.format("cidr", st.ip_addresses().map(str))
schema = schemathesis.openapi.from_dict(
    shared_gateway().app.openapi(),
    config=SchemathesisConfig.from_dict(
        {
            "auth": {"openapi": {"ApiKey": {"bearer": KEY}}},
            "checks": {
                "positive_data_acceptance": {
                    "expected-statuses": ["2xx", "3xx", "401", "403", "404", "409", "412"]
                }
            },
        }
    ),
)
schema.app = shared_gateway().app

as_it_is = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


class EverySibling(FakeGenerator):
    """Answers are whole for any `n`."""

    async def start(self, request: GenerationRequest) -> FakeGeneration:
        self.script = [step for sibling in range(request.n) for step in say("Hi", sibling=sibling)]
        return await super().start(request)


class OneIsThere(MemoryRollouts):
    """Beside those that are asked for."""

    async def get(self, rollout_id: str) -> Rollout:
        if rollout_id == "ro-0123abcd":
            return Rollout(rollout_id, created_at=1.0, state="done", ended_at=2.0)
        return await super().get(rollout_id)


async def with_examples(office: Office) -> None:
    """What the description's examples name is there, and a caller whose key opens every door."""
    await office.store.create_tier(Tier(name="gold", terms=Terms()), LAUNCHER)
    budgets = {"budget_day": 10**6, "budget_month": 10**6}
    acme = await office.store.get_tenant("acme")
    assert acme is not None
    await office.store.put_tenant(structs.replace(acme, overrides=budgets), None, LAUNCHER)
    await office.store.create_key(a_key(1, key_id="key_0123456789abcdef"), LAUNCHER)
    await office.store.create_tenant(a_tenant("operator"), LAUNCHER)
    caller = a_key(2, tenant_id="operator", key_hash=hash_key(SECRET, KEY), scopes=SCOPES)
    await office.store.create_key(caller, LAUNCHER)


@pytest.fixture
def statuses() -> Iterator[set[int]]:
    """Of the answers of one route, in an office of its own: some requests must have gone well."""
    office = Office()
    asyncio.run(office.open())
    asyncio.run(with_examples(office))
    office.services = replace(
        office.services, generator=EverySibling(), rollouts=OneIsThere(), max_model_len=lambda: LONG
    )
    assert office.app is schema.app
    seen: set[int] = set()
    yield seen
    assert any(status < 300 for status in seen)


@schema.parametrize()
@settings(as_it_is, max_examples=2)
def test_a_route_does_what_its_description_says(case: Case, statuses: set[int]) -> None:
    mend(case)
    statuses.add(case.call_and_validate().status_code)


@pytest.mark.soak
@schema.parametrize()
@settings(as_it_is, max_examples=200)
def test_so_it_does_with_many_more_requests(case: Case, statuses: set[int]) -> None:
    mend(case)
    statuses.add(case.call_and_validate().status_code)


def mend(case: Case) -> None:
    meta = case.meta
    assert meta is not None
    if case.path in ("/health", "/ready"):  # a method that is none of theirs needs a key, as everywhere
        case.headers["Authorization"] = f"Bearer {KEY}"
    if is_meant_right(meta, ParameterLocation.HEADER):
        if "Idempotency-Key" in case.headers:  # each request is a new one
            case.headers["Idempotency-Key"] = f"key-{next(_serial)}"
    elif is_right_elsewhere(meta):  # the tool counts the whole as right, with a number for a header
        case.headers.pop("If-Match", None)
        case.headers.pop("If-None-Match", None)
    if is_meant_right(meta, ParameterLocation.QUERY) and "from" in case.query:
        case.query["to"] = case.query["from"]
    if is_meant_right(meta, ParameterLocation.BODY):
        case.body = with_integers(case.body)
        if case.path in ("/v1/chat/completions", "/v1/completions"):
            mend_completion(case.body)
        elif case.method == "POST" and (field := NAMED_BY.get(case.path)) and (serial := next(_serial)) % 2:
            case.body[field] = f"new-{serial}"


def is_meant_right(meta: Any, location: ParameterLocation) -> bool:
    component = meta.components.get(location)
    return component is not None and component.mode is GenerationMode.POSITIVE


def is_right_elsewhere(meta: Any) -> bool:
    """As far as the tool's own checks go: a key that it leaves out is added again by its configuration."""
    is_right = meta.generation.mode is GenerationMode.POSITIVE
    return is_right or getattr(meta.phase.data, "parameter", None) == "Authorization"


def with_integers(value: Any) -> Any:
    """JSON Schema calls 1.0 an integer; we don't."""
    if isinstance(value, dict):
        return {name: with_integers(child) for name, child in value.items()}
    if isinstance(value, list):
        return [with_integers(child) for child in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def mend_completion(body: dict[str, Any]) -> None:
    """What no schema says: fields that go together, and ids of this vocabulary."""
    if body.get("stream_options") is not None:
        body["stream"] = True
    if body.get("top_logprobs"):
        body["logprobs"] = True
    body.pop("best_of", None)
    body.pop("min_tokens", None)
    if body.get("max_completion_tokens") is not None:
        body["max_tokens"] = None
    if body.get("logit_bias"):
        body["logit_bias"] = {str(int(name) % VOCABULARY): bias for name, bias in body["logit_bias"].items()}
    if body.get("stop_token_ids"):
        body["stop_token_ids"] = in_vocabulary(body["stop_token_ids"])
    if isinstance(body.get("prompt"), list):
        body["prompt"] = in_vocabulary(body["prompt"])
    for message in body.get("messages", ()):
        if message["role"] in ("user", "tool"):  # says something
            message["content"] = "Hi"


def in_vocabulary(ids: Any) -> Any:
    if isinstance(ids, list):
        return [in_vocabulary(one) for one in ids]
    return ids % VOCABULARY if isinstance(ids, int) else ids
