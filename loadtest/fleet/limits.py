"""Tenants' limits, as a gateway asks for them: the record's ledger, or a share of each while it is away."""

from __future__ import annotations

from collections.abc import Coroutine
from itertools import count
from typing import TypeVar

from loadtest.fleet.call import Call
from loadtest.fleet.clock import VirtualClock
from loadtest.record import OK
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Granted, Refused
from tenants.ledger.ledger import RENEW_EVERY_S
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.settlement import Outcome, Progress, Settlement
from tenants.offline.offline_ledger import OfflineLedger
from tenants.offline.prepaid import Prepaid
from tenants.terms import Prices, Terms

T = TypeVar("T")


class VirtualLimits:
    """Owns what runs of one gateway's requests in the ledger.

    Nothing in a ledger of this process awaits, so its answers are there at once. No price, and so no purse.
    """

    def __init__(self, gateway_id: str, ledger: MemoryLedger, clock: VirtualClock, num_gateways: int) -> None:
        self.is_cut = False
        """The record cannot be asked."""
        self._gateway_id = gateway_id
        self._ledger = ledger
        self._clock = clock
        self._open: dict[str, Ask] = {}
        self._spool: list[Settlement] = []
        """What the record is to be told."""
        ids = count()
        prepaid = Prepaid(
            ledger,
            self._settle,
            lambda: clock.now,
            lambda: clock.now,
            lambda: f"{gateway_id}-purse-{next(ids)}",
        )
        self._offline = OfflineLedger(prepaid, lambda: num_gateways, lambda: round(clock.now * 1e6))
        clock.every(RENEW_EVERY_S, self._renew)

    def cut(self, seconds: float) -> None:
        self.is_cut = True
        self._clock.after(seconds, self._mend)

    def reserve(self, call: Call) -> Refused | None:
        """None: it may run, and is to `end`."""
        limits = call.ask.customer.limits
        if limits is None:
            return None
        ask = Ask(
            request_id=call.call_id,
            tenant_id=call.ask.customer.tenant_id,
            key_id="key",
            model="clock",
            gateway_id=self._gateway_id,
            started_at=self._clock.now,
            scopes=(Scope(None, limits),),
            prices=Prices(),
            prompt_tokens=call.ask.num_prompt_tokens,
            n=1,
            max_tokens=call.max_tokens,
        )
        if self.is_cut:
            answer = _now(self._offline.reserve(ask, Terms(offline="serve")))
        else:
            answer = _now(self._ledger.reserve(ask))
        if isinstance(answer, Granted):
            self._open[call.call_id] = ask
            return None
        return answer

    def end(self, call: Call) -> None:
        """It has ended, or will never run."""
        ask = self._open.pop(call.call_id, None)
        if ask is None:
            return
        outcome: Outcome = "finished" if call.status == OK else "left" if call.token_times else "unserved"
        settlement = Settlement.of(
            ask,
            ended_at=self._clock.now,
            outcome=outcome,
            prompt_tokens=ask.prompt_tokens if call.token_times else 0,
            cached_tokens=call.cached_tokens,
            completion_tokens=len(call.token_times),
        )
        self._offline.ended(settlement)
        self._spool.append(settlement)
        self._flush()

    def _flush(self) -> None:
        if not self.is_cut:
            spool, self._spool = self._spool, []
            _now(self._ledger.settle(spool))

    async def _settle(self, settlement: Settlement) -> None:
        await self._ledger.settle([settlement])

    def _renew(self) -> None:
        if self.is_cut:
            _now(self._offline.tick())
        else:
            alive = [Progress(one.tenant_id, name, 0, 0) for name, one in self._open.items()]
            _now(self._ledger.renew(alive))

    def _mend(self) -> None:
        self.is_cut = False
        self._offline.record_is_back()
        self._flush()


def _now(answer: Coroutine[None, None, T]) -> T:
    """Of what does not await."""
    try:
        answer.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    raise RuntimeError("a ledger of this process waits for something")
