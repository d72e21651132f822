"""A record that was written back on another machine hears of what this machine's gateways spent, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenants.spool.rebuild import rebuild
from tenants.spool.spend_keeper import FILE_NAME, SpendKeeper
from tenants.store import StoreUnavailable
from tests.builders_spool import NOON, Pauses, TroubledLedger, a_settlement, spooled, sums


class Rig:
    """A record whose life a test ends, and the keepers of one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.ledger = TroubledLedger()
        self.life: str | None = "first"
        self.num_rebuilds = 0

    async def epoch(self) -> str | None:
        return self.life

    async def rebuild(self) -> int:
        self.num_rebuilds += 1
        return await rebuild(self.state_dir / "spool", self.ledger, NOON, Pauses())

    def keeper(self) -> SpendKeeper:
        return SpendKeeper(self, self.state_dir, self.rebuild)

    def is_lost(self, life: str | None) -> None:
        """It is empty, and then of that life."""
        self.ledger, self.life = TroubledLedger(), life

    async def spent(self) -> int:
        return (await sums(self.ledger)).cost


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    await spooled(tmp_path / "spool", "g1", a_settlement(1), a_settlement(2))
    return rig


async def test_a_new_life_of_the_record_is_told_once(rig: Rig) -> None:
    keeper = rig.keeper()
    assert not await keeper.keep_up()
    rig.is_lost("second")
    assert await keeper.keep_up()
    assert await rig.spent() == 3
    assert not await keeper.keep_up()
    assert not await rig.keeper().keep_up()  # another gateway, or this one after a restart
    assert rig.num_rebuilds == 1


async def test_a_loss_while_no_gateway_ran_here_is_seen_at_the_next_start(rig: Rig) -> None:
    await rig.keeper().keep_up()
    rig.is_lost("second")
    assert await rig.keeper().keep_up()
    assert await rig.spent() == 3


async def test_a_first_start_tells_nothing(rig: Rig) -> None:
    assert not await rig.keeper().keep_up()
    assert ((rig.state_dir / FILE_NAME).read_text(), rig.num_rebuilds) == ("first", 0)


async def test_a_record_that_is_not_whole_is_told_nothing(rig: Rig) -> None:
    keeper = rig.keeper()
    await keeper.keep_up()
    rig.is_lost(None)
    assert not await keeper.keep_up()
    assert rig.num_rebuilds == 0


async def test_one_that_was_lost_again_meanwhile_is_told_again(rig: Rig) -> None:
    keeper, rebuild_all = rig.keeper(), rig.rebuild
    await keeper.keep_up()
    rig.is_lost("second")

    async def rebuild_and_lose() -> int:
        num = await rebuild_all()
        if rig.num_rebuilds == 1:
            rig.is_lost("third")
        return num

    keeper = SpendKeeper(rig, rig.state_dir, rebuild_and_lose)
    assert not await keeper.keep_up()
    assert await keeper.keep_up()
    assert await rig.spent() == 3


async def test_what_the_record_did_not_take_is_told_again(rig: Rig) -> None:
    keeper = rig.keeper()
    await keeper.keep_up()
    rig.is_lost("second")
    rig.ledger.is_away = True
    with pytest.raises(StoreUnavailable):
        await keeper.keep_up()
    rig.ledger.is_away = False
    assert await keeper.keep_up()
    assert await rig.spent() == 3


async def test_a_full_disk_does_not_make_it_tell_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = rig.keeper()
    await keeper.keep_up()
    rig.is_lost("second")

    def full(path: Path, content: bytes) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("tenants.spool.spend_keeper.write_private", full)
        for _ in range(3):
            with pytest.raises(OSError, match="no space"):
                await keeper.keep_up()
    await keeper.keep_up()
    assert ((rig.state_dir / FILE_NAME).read_text(), rig.num_rebuilds) == ("second", 1)


async def test_while_another_gateway_of_the_directory_tells_this_one_does_not(rig: Rig) -> None:
    told: list[bool] = []
    first, second = rig.keeper(), rig.keeper()
    await first.keep_up()
    await second.keep_up()
    rig.is_lost("second")

    async def rebuild_slowly() -> int:
        told.append(await second.keep_up())
        return await rig.rebuild()

    assert await SpendKeeper(rig, rig.state_dir, rebuild_slowly).keep_up()
    assert (told, rig.num_rebuilds) == ([False], 1)
