"""Random histories: Redis, memory and a model that remembers only deeds say the same after every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from tenants.outcomes.outcome import Begun, Finished, Found, InProgress, Mark, Reused, TooLarge
from tests.tenants.outcome_stores import MemoryStore, RedisStore, Store, a_mark

LEASE_S = 1000.0
KEEP_S = 5000.0
STEP_S = 250.0
"""Between these times lie minutes: a busy machine changes no history."""

Change = Literal["renew", "finish", "too large", "fail"]


class Ask(NamedTuple):
    """Of an owner that is new each time."""

    mark: Mark


class Do(NamedTuple):
    """By the one that asked so many questions ago."""

    change: Change
    ago: int


class Wait(NamedTuple):
    num_steps: int


Deed = Ask | Do | Wait

MARKS = st.builds(
    a_mark, st.sampled_from(["k1", "k2"]), st.sampled_from(["b1", "b2"]), st.sampled_from(["acme", "globex"])
)
DEEDS = st.one_of(
    st.builds(Ask, st.just(a_mark("k1", "b1")) | MARKS),
    st.builds(Do, st.sampled_from(["renew", "renew", "finish", "too large", "fail"]), st.integers(0, 2)),
    st.builds(Wait, st.sampled_from([1, 1, 1, 2, 4, 20])),
)


class Past(NamedTuple):
    """What changed a record, and when."""

    at: float
    kind: Literal["begin"] | Change
    mark: Mark
    owner: str


@dataclass
class Model:
    """All that was ever done. What holds now is read from it, newest first."""

    now: float = 0.0
    past: list[Past] = field(default_factory=list)

    def begin(self, mark: Mark, owner: str) -> Found:
        last = self._last(mark)
        if last is None:
            self.past.append(Past(self.now, "begin", mark, owner))
            return Begun()
        if last.mark != mark:
            return Reused()
        if last.kind == "finish":
            return Finished(last.owner.encode())
        return TooLarge() if last.kind == "too large" else InProgress(self.now - self._first(last.owner).at)

    def do(self, change: Change, mark: Mark, owner: str) -> bool:
        last = self._last(mark)
        if last is None or last.owner != owner or last.kind not in ("begin", "renew"):
            return False
        self.past.append(Past(self.now, change, mark, owner))
        return True

    def _last(self, mark: Mark) -> Past | None:
        """What was done to the record, if it still counts."""
        place = (mark.tenant_id, mark.key_hash)
        last = next(
            (deed for deed in reversed(self.past) if (deed.mark.tenant_id, deed.mark.key_hash) == place), None
        )
        if last is None or last.kind == "fail":
            return None
        lasts_s = LEASE_S if last.kind in ("begin", "renew") else KEEP_S
        return last if self.now < last.at + lasts_s else None

    def _first(self, owner: str) -> Past:
        return next(deed for deed in self.past if deed.owner == owner)


@pytest.fixture(autouse=True)
def long_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("memory", "redis"):
        monkeypatch.setattr(f"tenants.outcomes.{module}_outcomes.LEASE_S", LEASE_S)
        monkeypatch.setattr(f"tenants.outcomes.{module}_outcomes.KEEP_S", KEEP_S)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(DEEDS, min_size=1, max_size=25))
async def test_both_stores_and_the_model_tell_the_same(redis: Redis, history: list[Deed]) -> None:
    await redis.flushall()
    model, stores = Model(), (MemoryStore(), RedisStore(redis))
    asked: list[tuple[Mark, str]] = []
    for deed in history:
        if isinstance(deed, Ask):
            asked.append((deed.mark, f"owner {len(asked)}"))
            expected = model.begin(*asked[-1])
            for store in stores:
                assert in_steps(await store.outcomes.begin(*asked[-1])) == expected
        elif isinstance(deed, Do) and deed.ago < len(asked):
            mark, owner = asked[-1 - deed.ago]
            is_done = model.do(deed.change, mark, owner)
            for store in stores:
                assert await do(store, deed.change, mark, owner) is is_done
        elif isinstance(deed, Wait):
            model.now += deed.num_steps * STEP_S
            for store in stores:
                await store.pass_time(deed.num_steps * STEP_S)
    for key in await redis.keys():
        assert key.startswith((b"headrace:{acme}:outcome", b"headrace:{globex}:outcome"))
        lasts_s = KEEP_S * 25 / 24 if key.endswith(b":outcomes") else KEEP_S
        assert 0 < await redis.pttl(key) <= lasts_s * 1000 + 1


def in_steps(found: Found) -> Found:
    """Without the moments that pass while a test runs."""
    return InProgress(found.running_s // STEP_S * STEP_S) if isinstance(found, InProgress) else found


async def do(store: Store, change: Change, mark: Mark, owner: str) -> bool:
    if change == "renew":
        return await store.outcomes.renew(mark, owner)
    if change == "fail":
        return await store.outcomes.fail(mark, owner)
    kept = await store.outcomes.finish(mark, owner, owner.encode() if change == "finish" else None)
    assert kept in (None, "stored" if change == "finish" else "too_large")
    return kept is not None
