"""The record of tenants at the start of a cluster: made, found, or written back."""

from __future__ import annotations

import time
from pathlib import Path

from cluster.settings import SPOOLS, root_secret
from tenants.bootstrap import KeyFiles, ensure_demo
from tenants.ledger.redis_ledger import RedisLedger
from tenants.offline.redis_membership import RedisMembership
from tenants.offline.reopening import all_reopened
from tenants.redis_client import connect
from tenants.spool.rebuild import rebuild
from tenants.store_redis import RedisTenantStore


async def open_record(redis_url: str, state_dir: Path) -> KeyFiles:
    """Makes the demo and admin keys where they are missing; of a lost record, what was spent comes first.

    Raises `BootstrapError` or `StoreUnavailable`.
    """
    client = connect(redis_url)

    async def refill() -> None:
        await all_reopened(RedisMembership(client), num_gateways=0)
        await rebuild(state_dir / SPOOLS, RedisLedger(client), time.time())

    try:
        store, secret = RedisTenantStore(client), root_secret(state_dir)
        return await ensure_demo(store, secret, state_dir, time.time(), refill)
    finally:
        await client.aclose()
