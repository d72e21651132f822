from __future__ import annotations

import pytest

from tests.cluster.fakes import FakeGateway
from tests.tenants.conftest import redis, redis_url

__all__ = ["redis", "redis_url"]


@pytest.fixture
async def gateway() -> FakeGateway:
    return await FakeGateway().open()
