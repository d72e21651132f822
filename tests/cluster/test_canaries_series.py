"""However much junk comes, the metrics keep as many series as there are kinds of answers."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.telemetry import MAX_TENANT_LABELS
from tenants.api_key import ApiKey, hash_key, new_key, new_key_id
from tenants.audit import LAUNCHER
from tenants.tenant import Tenant
from tests.cluster.fakes import SECRET, WALL_TIME, FakeGateway

NUM_TENANTS = MAX_TENANT_LABELS + 60
TEXT = "/v1/completions"
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")


def num_series(gateway: FakeGateway) -> int:
    families = text_string_to_metric_families(gateway.telemetry.render().decode())
    return sum(len(family.samples) for family in families)


async def junk(gateway: FakeGateway, number: int) -> None:
    word = f"junk-{number}"
    headers = {"x-request-id": word, "x-headrace-class": word, "user-agent": word, "x-forwarded-for": word}
    match number % 5:
        case 0:
            await gateway.post(f"/{word}/{word}", b"", headers=headers)
        case 1:
            await gateway.post(TEXT, {"model": word, "prompt": word}, headers=headers)
        case 2:
            await gateway.call(METHODS[number // 5 % len(METHODS)], f"/v1/models/{word}", headers=headers)
        case 3:
            await gateway.post(
                TEXT, {"prompt": word, word: word}, headers={"authorization": f"Bearer hr-{word}"}
            )
        case _:
            await gateway.call(word.upper(), f"/admin/v1/tenants/{word}", scope="admin")


@pytest.mark.parametrize("num_junk", [2_000, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_junk_requests_add_no_series(gateway: FakeGateway, num_junk: int) -> None:
    for number in range(100):
        await junk(gateway, number)
    before = num_series(gateway)
    for number in range(100, num_junk):
        await junk(gateway, number)
    assert num_series(gateway) == before
    assert b"junk" not in gateway.telemetry.render().lower()


async def test_tenants_beyond_the_first_share_their_series(gateway: FakeGateway) -> None:
    counts = {}
    for number in range(NUM_TENANTS):
        answer = await gateway.post(
            TEXT,
            {"model": "tiny", "prompt": "x"},
            headers={"authorization": await new_tenants_key(gateway, number)},
        )
        assert answer.status == 200
        if number % 50 == 1:
            counts[number] = num_series(gateway)
    early, later, full, last = counts.values()
    assert early < later < full == last


async def new_tenants_key(gateway: FakeGateway, number: int) -> str:
    tenant_id = f"tenant-{number}"
    key = new_key()
    record = ApiKey(
        key_id=new_key_id(),
        tenant_id=tenant_id,
        key_hash=hash_key(SECRET, key),
        scopes=("inference",),
        hint=key[-4:],
        created_at=WALL_TIME,
    )
    tenant = Tenant(tenant_id=tenant_id, name=tenant_id, tier="unlimited", created_at=WALL_TIME)
    await gateway.store.create_tenant(tenant, LAUNCHER)
    await gateway.store.create_key(record, LAUNCHER)
    return f"Bearer {key}"
