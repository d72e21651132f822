"""Leases: all running requests in one call, as far as they are."""

from __future__ import annotations

from collections.abc import Sequence

from tenants.ledger.reservation import Held
from tenants.ledger.settlement import Progress
from tenants.ledger.state import Spend
from tenants.spool.leases import Leases
from tests.builders_spool import NOON, TroubledLedger
from tests.tenants.ledger.builders import an_ask


class Renewed(TroubledLedger):
    def __init__(self) -> None:
        super().__init__()
        self.renewals: list[list[Progress]] = []

    async def renew(self, running: Sequence[Progress]) -> None:
        await super().renew(running)
        self.renewals.append(list(running))


async def test_one_call_tells_how_far_each_running_request_is() -> None:
    ledger, made = Renewed(), [0]
    leases = Leases(ledger)
    for name in ("a", "b", "c"):
        leases.add(Held(an_ask(name), 1), lambda name=name: Progress("acme", name, 4, made[0]))
    await leases.renew()
    made[0] = 9
    leases.remove("b")
    leases.remove("b")
    await leases.renew()
    assert ledger.renewals == [
        [Progress("acme", name, 4, 0) for name in "abc"],
        [Progress("acme", name, 4, 9) for name in "ac"],
    ]


async def test_nothing_runs_nothing_is_asked() -> None:
    ledger = Renewed()
    await Leases(ledger).renew()
    assert ledger.renewals == []


async def test_a_ledger_that_is_away_is_counted_and_asked_again() -> None:
    ledger = Renewed()
    leases = Leases(ledger)
    leases.add(Held(an_ask("a"), 1), lambda: Progress("acme", "a", 0, 1))
    ledger.is_away = True
    await leases.renew()
    ledger.is_away = False
    await leases.renew()
    assert leases.num_failed_renewals == 1
    assert len(ledger.renewals) == 1


async def test_a_ledger_that_forgot_what_runs_has_it_again() -> None:
    ledger = TroubledLedger()
    leases = Leases(ledger)
    for number, name in enumerate("abc", start=1):
        leases.add(
            Held(an_ask(name, started_at=NOON), number), lambda name=name: Progress("acme", name, 0, 0)
        )
    leases.remove("b")
    await leases.reopen()
    assert (await ledger.spends("acme", None)).day == Spend(reserved=4)
