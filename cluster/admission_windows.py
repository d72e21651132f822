"""A replica's admission windows: how much each gateway may have outstanding here.

All windows together hold two steps of prompt tokens, and the seats of the batch with a few more, so that a
seat that gets free is taken in the next step and not a round trip later; on top the seats that are kept for
who has no prompt here (`cluster/credit.py`), and `FLOOR` for each gateway.
They are divided by what the gateways have here and what waits at them (`cluster/window_shares.py`). Below its
share each has room for `FLOOR` more than that, so that it can start one at once.

A window is raised only by what no other one claims: what it was told or has here, whichever is more. One that
shrinks is free for others a division later, when its gateway has heard of it. So all gateways together never
have more here than the windows, the one request that takes each beyond its own, and what is kept for who has
no prompt here. Failure mode: with steps longer than `DIVIDED_EVERY_S`, what was sent before the gateway heard
comes on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.backlog import Backlog
from cluster.credit import KEPT_SEATS, NO_CREDIT, Credit, Outstanding
from cluster.window_shares import FlowDemand, window_shares
from engine.request import Request, RequestOutput

WINDOW_STEPS = 2
LEAD = 8
"""One seat more for so many seats of the batch, and at least one (`NOTES.md` has what others would cost)."""
FLOOR = Credit(1, 1)
DIVIDED_EVERY_S = 0.1
RAMP_S = 5.0
RAMP_FROM = 0.125
ROUNDING = 1e-6
"""Shares are sums of fractions: a whole number must not become the one below."""


@dataclass
class _Account:
    """One gateway at this replica."""

    outstanding: Outstanding
    backlogs: Sequence[Backlog] = ()
    window: Credit = NO_CREDIT

    @property
    def there(self) -> Credit:
        return Credit(self.outstanding.tokens, self.outstanding.requests)

    def demands(self, kind: int) -> list[FlowDemand]:
        """What is there, what waits, and room to start; `kind`: index of a field of `Credit`."""
        room = [FlowDemand("", FLOOR[kind])]
        waiting = [
            FlowDemand(one.tenant_id, (one.tokens, one.requests)[kind], one.weight, one.priority)
            for one in self.backlogs
        ]
        there = [
            FlowDemand(flow.flow_id, (one.tokens, one.seats)[kind], flow.weight, one.request.priority)
            for one in self.outstanding.live
            if (flow := one.request.flow)
        ]
        return room + waiting + there


def full_window(max_num_batched_tokens: int, max_num_seqs: int) -> Credit:
    """What a replica grants to all gateways together, but for `FLOOR`."""
    num_seats = max_num_seqs + -(-max_num_seqs // LEAD)
    return Credit(WINDOW_STEPS * max_num_batched_tokens, -(-num_seats * KEPT_SEATS // (KEPT_SEATS - 1)))


class AdmissionWindows:
    """Owns each attached gateway's window, what it has here and what waits at it, as it last reported.

    From the first gateway on the windows grow from `RAMP_FROM` of their size to all of it within `ramp_s`:
    a replica that comes into a crowd meets its first steps with few requests.
    """

    def __init__(self, max_num_batched_tokens: int, max_num_seqs: int, ramp_s: float = RAMP_S) -> None:
        self._full = full_window(max_num_batched_tokens, max_num_seqs)
        self._step_tokens = max_num_batched_tokens
        self._ramp_s = ramp_s
        self._began_s: float | None = None
        self._next_division_s = 0.0
        self._accounts: dict[str, _Account] = {}

    @property
    def gateway_ids(self) -> Iterable[str]:
        return self._accounts.keys()

    def open(self, gateway_id: str, now: float) -> None:
        """A gateway has attached, and has nothing here."""
        if self._began_s is None:
            self._began_s = now
        self._accounts[gateway_id] = _Account(Outstanding(self._step_tokens))
        self._next_division_s = now

    def close(self, gateway_id: str) -> None:
        """Its stream has ended: credit and counts go with it."""
        self._accounts.pop(gateway_id, None)

    def report(self, gateway_id: str, backlogs: Sequence[Backlog]) -> None:
        if gateway_id in self._accounts:
            self._accounts[gateway_id].backlogs = backlogs

    def add(self, gateway_id: str, request: Request) -> None:
        if gateway_id in self._accounts:
            self._accounts[gateway_id].outstanding.add(request)

    def hear(self, gateway_id: str, outputs: Iterable[RequestOutput]) -> None:
        if gateway_id in self._accounts:
            self._accounts[gateway_id].outstanding.hear(outputs)

    def window_of(self, gateway_id: str) -> Credit:
        account = self._accounts.get(gateway_id)
        return NO_CREDIT if account is None else account.window

    def divide(self, now: float) -> None:
        """Every `DIVIDED_EVERY_S`, however often it is called; at once after a gateway has come."""
        if now < self._next_division_s or not self._accounts:
            return
        self._next_division_s = now + DIVIDED_EVERY_S
        full = self._full_at(now)
        windows = [self._moved(full, kind) for kind in range(len(full))]
        for gateway_id, account in self._accounts.items():
            account.window = Credit(*(moved[gateway_id] for moved in windows))

    def _full_at(self, now: float) -> Credit:
        """All windows together: the replica's, grown so far, and room to start for each gateway."""
        assert self._began_s is not None
        grown = min(1.0, (now - self._began_s) / self._ramp_s) if self._ramp_s else 1.0
        part, num_gateways = RAMP_FROM + (1 - RAMP_FROM) * grown, len(self._accounts)
        return Credit(
            int(part * self._full.tokens) + num_gateways * FLOOR.tokens,
            int(part * self._full.requests) + num_gateways * FLOOR.requests,
        )

    def _moved(self, full: Credit, kind: int) -> dict[str, int]:
        """One side of the windows, on the way to their shares: down at once, up by what is free."""
        told = {key: account.window[kind] for key, account in self._accounts.items()}
        demands = {key: account.demands(kind) for key, account in self._accounts.items()}
        shares = window_shares(full[kind], demands)
        steps = {
            key: max(FLOOR[kind], int(share * full[kind] + ROUNDING)) - told[key]
            for key, share in shares.items()
        }
        claimed = sum(max(told[key], account.there[kind]) for key, account in self._accounts.items())
        asked = sum(step for step in steps.values() if step > 0)
        free = min(asked, max(0, full[kind] - claimed))
        moved = {key: step if step <= 0 else step * free // asked for key, step in steps.items()}
        return {key: max(FLOOR[kind], told[key] + step) for key, step in moved.items()}
