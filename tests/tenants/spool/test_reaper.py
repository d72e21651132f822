"""The reaper: reservations whose gateway died are settled, written down, and corrected by what it left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Granted
from tenants.ledger.ledger import LEASE_S
from tenants.ledger.settlement import Progress
from tenants.spool.dead_spools import DeadSpools
from tenants.spool.reading import read_lines
from tenants.spool.reaper import PATIENCE_S, Reaper
from tenants.terms import Limits, Prices
from tests.builders_spool import SettlerRig, a_settlement, spooled, sums


class Rig(SettlerRig):
    """Gateway `g1` with a reaper; `dead` is another one, which is gone."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        dead_spools = DeadSpools(base, self.ledger, self.clock, self.settler.figures)
        self.reaper = Reaper(self.ledger, self.settler, dead_spools, self.clock, lambda: self.is_known_away)
        self.is_known_away = False

    async def reserve(self, request_id: str = "lost", **fields: Any) -> None:
        plain: dict[str, Any] = {
            "request_id": request_id,
            "tenant_id": "acme",
            "key_id": "key_1",
            "model": "tiny",
            "gateway_id": "dead",
            "started_at": self.clock.now,
            "scopes": (Scope(None, Limits()),),
            "prices": Prices(input=1_000_000, cached_input=1_000_000, output=1_000_000),
            "prompt_tokens": 10,
            "n": 1,
            "max_tokens": 50,
        }
        assert isinstance(await self.ledger.reserve(Ask(**plain | fields)), Granted)

    async def tick(self) -> None:
        await self.reaper.tick()
        await self.drained()

    def lines(self) -> list[tuple[str, str, str, int]]:
        found = [line.entry for line in read_lines(self.spool.folder) if line.entry]
        return [(one.request_id, one.gateway_id, one.outcome, one.completion_tokens) for one in found]


async def test_an_orphan_is_settled_at_its_last_renewal_and_written_down(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.reserve()
    await rig.ledger.renew([Progress("acme", "lost", 4, 20)])
    await rig.tick()
    assert rig.reaper.num_reaped == 0
    rig.clock.advance(LEASE_S)
    await rig.tick()
    await rig.tick()
    assert rig.reaper.num_reaped == 1
    assert rig.lines() == [("lost", "dead", "reaped", 20)]
    assert await sums(rig.ledger) == (1, 10, 4, 20, 30)
    await rig.settler.close(1.0)


async def test_the_gateway_s_own_line_corrects_the_reaper_s_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.reserve()
    await rig.ledger.renew([Progress("acme", "lost", 4, 20)])
    rig.clock.advance(LEASE_S)
    await rig.tick()
    own = a_settlement(
        request_id="lost",
        gateway_id="dead",
        started_at=rig.clock.now - LEASE_S,
        completion_tokens=33,
        cost=43,
    )
    await spooled(tmp_path, "dead", own)
    await rig.tick()
    await rig.tick()
    assert rig.reaper.num_spools_replayed == 1
    assert await sums(rig.ledger) == (1, 10, 4, 33, 43)
    await rig.settler.close(1.0)


async def test_what_the_dead_gateway_settled_comes_before_what_is_guessed(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.reserve()
    await spooled(tmp_path, "dead", a_settlement(request_id="lost", started_at=rig.clock.now, cost=5))
    rig.clock.advance(LEASE_S)
    await rig.tick()
    assert rig.reaper.num_reaped == 0
    assert (await sums(rig.ledger)).cost == 5
    await rig.settler.close(1.0)


async def test_after_an_outage_those_who_live_may_renew_first(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.reserve(gateway_id="g1")
    rig.is_known_away = True
    rig.clock.advance(LEASE_S + 1)
    await rig.tick()
    rig.is_known_away = False
    await rig.tick()
    assert rig.reaper.num_reaped == 0
    await rig.ledger.renew([Progress("acme", "lost", 0, 1)])
    rig.clock.advance(PATIENCE_S)
    await rig.ledger.renew([Progress("acme", "lost", 0, 2)])
    await rig.tick()
    assert rig.reaper.num_reaped == 0
    rig.clock.advance(LEASE_S)
    await rig.tick()
    assert rig.reaper.num_reaped == 1
    await rig.settler.close(1.0)


async def test_a_ledger_that_is_known_to_be_away_is_not_asked(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await spooled(tmp_path, "dead", a_settlement(1))
    rig.is_known_away = True
    await rig.tick()
    assert rig.ledger.told == []
    rig.is_known_away = False
    await rig.tick()
    assert rig.ledger.told == ["r1"]
    await rig.settler.close(1.0)


async def test_a_ledger_that_fails_before_anybody_knows_ends_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.reserve()
    rig.clock.advance(LEASE_S)
    rig.ledger.is_away = True
    await rig.tick()
    rig.ledger.is_away = False
    await rig.tick()
    assert rig.reaper.num_reaped == 1
    await rig.settler.close(1.0)


async def test_several_reapers_settle_an_orphan_once(tmp_path: Path) -> None:
    first = Rig(tmp_path / "a")
    second = Rig(tmp_path / "b")
    second.reaper = Reaper(
        first.ledger,
        second.settler,
        DeadSpools(tmp_path / "a", first.ledger, first.clock, second.settler.figures),
        first.clock,
        lambda: False,
    )
    await first.reserve()
    first.clock.advance(LEASE_S)
    await first.tick()
    await second.tick()
    assert (first.reaper.num_reaped, second.reaper.num_reaped) == (1, 0)
    await first.settler.close(1.0)
    await second.settler.close(1.0)


async def test_an_orphan_that_the_disk_does_not_take_is_still_reaped(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.reserve()
    await rig.reserve("another")
    rig.clock.advance(LEASE_S)
    rig.disk.fault = OSError(28, "No space left on device")
    await rig.reaper.tick()
    assert rig.reaper.num_reaped == 2
    rig.disk.fault = None
    await rig.drained()
    assert {line[0] for line in rig.lines()} == {"lost", "another"}
    await rig.settler.close(1.0)
