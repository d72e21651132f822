"""How clients ask, and ask again: as OpenAI's SDKs do."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from loadtest.fleet.call import Ask, Call
from loadtest.fleet.clock import VirtualClock
from loadtest.fleet.gateway import VirtualGateway

MAX_RETRIES = 2
MAX_OBEYED_S = 60
"""A longer `Retry-After` is not waited for, but backed off from."""
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 8.0
JITTER = 0.25


class Clients:
    """Sends asks to gateways at random, one try after the other; each ask ends once, by `on_done`.

    That comes after the pause if it failed: who asks one thing after the other is in no hurry then, either.

    `on_call` hears of every try that ended.
    """

    def __init__(
        self,
        clock: VirtualClock,
        gateways: list[VirtualGateway],
        rng: Random,
        on_call: Callable[[Call], None],
        *,
        max_retries: int = MAX_RETRIES,
    ) -> None:
        self._clock = clock
        self._gateways = gateways
        self._rng = rng
        self._on_call = on_call
        self._max_retries = max_retries
        self.num_open = 0
        """Asks that have not ended."""

    def send(self, ask: Ask, on_done: Callable[[], None] = lambda: None) -> None:
        self.num_open += 1
        self._try(ask, 0, False, on_done)

    def _try(self, ask: Ask, tries: int, was_told: bool, on_done: Callable[[], None]) -> None:
        gateway = self._rng.choice(self._gateways)
        call = Call(ask, tries, was_told, self._clock.now, lambda call: self._ended(call, on_done))
        self._clock.after(ask.timeout_s, lambda: self._time_out(call, gateway))
        gateway.ask(call)

    def _time_out(self, call: Call, gateway: VirtualGateway) -> None:
        if call.is_live:
            gateway.hang_up(call)
            call.end("timeout", self._clock.now)

    def _ended(self, call: Call, on_done: Callable[[], None]) -> None:
        self._on_call(call)
        if call.is_ok:
            self._done(on_done)
            return
        is_obeyed = call.retry_after_s is not None and call.retry_after_s <= MAX_OBEYED_S
        pause_s = float(call.retry_after_s or 0) if is_obeyed else self._backoff_s(call.tries)
        if call.tries == self._max_retries:
            self._clock.after(pause_s, lambda: self._done(on_done))
        else:
            self._clock.after(pause_s, lambda: self._try(call.ask, call.tries + 1, is_obeyed, on_done))

    def _done(self, on_done: Callable[[], None]) -> None:
        self.num_open -= 1
        on_done()

    def _backoff_s(self, tries: int) -> float:
        return min(FIRST_BACKOFF_S * float(2**tries), MAX_BACKOFF_S) * (1 - JITTER * self._rng.random())
