"""The ledger: who may take what, what is reserved, what was spent. One protocol, a Redis and a memory store.

A request is *reserved* before it runs and *settled* once when it has ended, by its id. What is reserved
counts as spent, so no race overspends; the settlement puts the truth in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Granted, Refused, Standing
from tenants.ledger.reservation import Held
from tenants.ledger.settlement import Progress, Settlement
from tenants.ledger.state import Spends
from tenants.ledger.usage import UsageRow

LEASE_S = 10.0
"""A reservation that is not renewed for so long is an orphan."""
RENEW_EVERY_S = 2.0
PURSE_LEASE_S = 900.0
"""Of a reservation that is a purse, once renewed: longer than a gateway spends from it unheard."""
TOMBSTONE_S = 48 * 3600
"""For so long a settlement that comes again is known."""
KEEP_USAGE_DAYS = 400

Applied = Literal["applied", "corrected", "duplicate"]


class Ledger(Protocol):
    """Owns reservations, rates, spend and usage. Every method may raise `StoreUnavailable`."""

    async def reserve(self, ask: Ask) -> Granted | Refused:
        """Takes everything or nothing. The same `request_id` must not be reserved twice.

        Raises ValueError for what cannot be counted exactly (`Ask.check`).
        """

    async def settle(self, settlements: Sequence[Settlement]) -> list[Applied]:
        """Each exactly once by its id, whether or not it had been reserved; repeating is harmless.

        One that the reaper settled before is corrected by the first that comes after.
        """

    async def renew(self, running: Sequence[Progress]) -> None:
        """Leases of running requests, for another `LEASE_S`; unknown ones are left out."""

    async def reap(self) -> list[Settlement]:
        """Settles reservations whose lease has ended, at the count of their last renewal.

        One whose renewals told no output token costs nothing: nobody has had anything of it.
        """

    async def standing(self, tenant_id: str, model: str, scopes: Sequence[Scope]) -> Standing:
        """As a `reserve` would find it; takes nothing."""

    async def reopen(self, held: Sequence[Held]) -> None:
        """Of a ledger that has forgotten them: reserves the money and the places of running requests again.

        Nothing is asked, for it was granted before. One that is open, or settled, is left as it is.
        """

    async def spends(self, tenant_id: str, key_id: str | None) -> Spends:
        """Of the tenant, or of one of its keys, in the windows that run now."""

    async def adjust(self, adjustments: Sequence[Adjustment]) -> list[Applied]:
        """Each exactly once by its id; repeating is harmless. Of a window that has ended nothing is left to
        change.
        """

    async def usage(self, tenant_id: str, first_day: str, last_day: str) -> list[UsageRow]:
        """Rows of the days from `first_day` to `last_day`, both included, by day, model and key.

        Raises ValueError for a day that is none, and for more than `MAX_DAYS_ASKED` of them.
        """
