"""Again and again: a failure is logged and ends nothing."""

from __future__ import annotations

import asyncio

import pytest

from tenants.spool.every import every
from tests.builders_spool import Pauses, until


async def test_it_goes_on_after_a_failure_until_it_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    ticks, pauses = list[int](), Pauses()

    async def tick() -> None:
        ticks.append(len(ticks))
        if len(ticks) == 2:
            raise RuntimeError("a fault")

    running = asyncio.ensure_future(every(2.0, tick, pauses))
    await until(lambda: len(ticks) >= 4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert set(pauses.seconds) == {2.0}
    assert "a fault" in caplog.text
