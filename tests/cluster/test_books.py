"""Books: leases while requests run, settlements on disk when they end, whatever the disk says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cluster.books import Books
from tenants.ledger.grant import Granted
from tenants.ledger.reservation import Held
from tenants.ledger.settlement import Progress, Settlement
from tests.cluster.fake_books import NOW, an_ask


class Rig:
    def __init__(self) -> None:
        self.leased: dict[str, Callable[[], Progress]] = {}
        self.reopened: list[list[str]] = []
        self.settled: list[Settlement] = []
        self.heard: list[Settlement] = []
        self.fault: OSError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.books = Books(self, self, lambda: NOW, self.heard.append)

    def add(self, held: Held, progress: Callable[[], Progress]) -> None:
        self.leased[held.ask.request_id] = progress

    async def reopen(self) -> None:
        self.reopened.append(list(self.leased))

    def remove(self, request_id: str) -> None:
        self.leased.pop(request_id, None)

    async def settle(self, settlement: Settlement) -> None:
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        self.settled.append(settlement)


GRANTED = Granted(max_tokens=8, reserved_cost=0)


async def test_a_lease_lasts_from_the_grant_to_the_end() -> None:
    rig = Rig()
    reservation = rig.books.open(an_ask("a"), GRANTED)
    assert rig.leased["a"]() == Progress("acme", "a", 0, 0)
    reservation.settle("finished")
    assert rig.leased == {}
    await rig.books.close()
    assert [one.request_id for one in rig.settled] == ["a"]
    assert rig.heard == rig.settled


async def test_closing_waits_for_what_is_not_on_disk_yet() -> None:
    rig = Rig()
    rig.gate.clear()
    rig.books.open(an_ask("a"), GRANTED).settle("left")
    closing = asyncio.ensure_future(rig.books.close())
    await asyncio.sleep(0)
    assert not closing.done()
    rig.gate.set()
    await closing
    assert len(rig.settled) == 1


async def test_reserving_again_returns_when_what_has_ended_is_on_disk_whatever_the_disk_says() -> None:
    rig = Rig()
    rig.gate.clear()
    rig.fault = OSError(28, "No space left on device")
    rig.books.open(an_ask("a"), GRANTED)
    rig.books.open(an_ask("b"), GRANTED).settle("finished")
    reopening = asyncio.ensure_future(rig.books.reopen())
    await asyncio.sleep(0)
    assert (rig.reopened, reopening.done()) == ([["a"]], False)
    rig.gate.set()
    await reopening
    await rig.books.reopen()
    assert rig.reopened == [["a"], ["a"]]


async def test_who_stops_waiting_for_the_disk_takes_no_settlement_along() -> None:
    rig = Rig()
    rig.gate.clear()
    rig.books.open(an_ask("a"), GRANTED).settle("finished")
    reopening = asyncio.ensure_future(rig.books.reopen())
    await asyncio.sleep(0)
    reopening.cancel()
    await asyncio.gather(reopening, return_exceptions=True)
    rig.gate.set()
    await rig.books.close()
    assert [one.request_id for one in rig.settled] == ["a"]


async def test_what_nobody_heard_of_is_given_back() -> None:
    rig = Rig()
    rig.books.give_back(an_ask("a"))
    await rig.books.close()
    assert [one.outcome for one in rig.settled] == ["unserved"]


async def test_a_full_disk_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.fault = OSError(28, "No space left on device")
    rig.books.open(an_ask("a"), GRANTED).settle("finished")
    await rig.books.close()
    assert "No space left on device" in caplog.text
    rig.fault = None
    rig.books.open(an_ask("b"), GRANTED).settle("finished")
    await rig.books.close()
    assert [one.request_id for one in rig.settled] == ["b"]
