"""Books that a test reads: every reservation, every settlement, in their order."""

from __future__ import annotations

from typing import Any

from cluster.books import NOTHING_WAS_TAKEN
from cluster.reservation import Reservation
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Granted
from tenants.ledger.settlement import Settlement
from tenants.store import Account
from tenants.terms import Limits, Prices, Terms
from tests.builders_tenants import a_key, a_tenant

NOW = 1_700_000_000.0


def an_account(**terms: Any) -> Account:
    return Account(a_key(), a_tenant(), Terms(**terms))


def an_ask(request_id: str = "r", **fields: Any) -> Ask:
    plain: dict[str, Any] = {
        "request_id": request_id,
        "tenant_id": "acme",
        "key_id": "key_1",
        "model": "tiny",
        "gateway_id": "g",
        "started_at": NOW,
        "scopes": (Scope(None, Limits()),),
        "prices": Prices(),
        "prompt_tokens": 3,
        "n": 1,
        "max_tokens": 8,
    }
    return Ask(**plain | fields)


class FakeBooks:
    """Stands for `Books`."""

    def __init__(self) -> None:
        self.now = NOW
        self.opened: list[Reservation] = []
        self.given_back: list[Ask] = []
        self.settlements: list[Settlement] = []

    def open(self, ask: Ask, granted: Granted) -> Reservation:
        reservation = Reservation(ask, granted, self, lambda: self.now)
        self.opened.append(reservation)
        return reservation

    def give_back(self, ask: Ask) -> None:
        self.given_back.append(ask)
        Reservation(ask, NOTHING_WAS_TAKEN, self, lambda: self.now).settle("unserved")

    def settled(self, settlement: Settlement) -> None:
        self.settlements.append(settlement)

    @property
    def outcomes(self) -> list[str]:
        return [settlement.outcome for settlement in self.settlements]
