from __future__ import annotations

import pytest

from tests.cluster.fakes import FakeGateway


@pytest.fixture
async def gateway() -> FakeGateway:
    return await FakeGateway().open()
