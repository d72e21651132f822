"""The run: demand of several pools at once, clients that leave in every state, integrity at every step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from engine.block_pool import IntegrityError
from engine.core import EngineCore
from engine.request import RequestOutput
from engine.scheduler import RequestRefused
from engine.step import StepPlan
from loadtest.pressure.answer import Reader
from loadtest.pressure.bounds import DEMAND, MAX_PREEMPTIONS
from loadtest.pressure.load import Case, State
from loadtest.watched_executor import WatchedExecutor


def most_steps(cases: Iterable[Case]) -> int:
    """More than any load needs: one token a step, and again after each preemption."""
    return sum((MAX_PREEMPTIONS + 1) * case.request.n * case.demand_tokens for case in cases)


class Client:
    """Owns what one request's client has read, and what it could tell of the request's state."""

    def __init__(self, case: Case, token_bytes: Callable[[int], bytes]) -> None:
        self.case = case
        self.readers = [Reader(token_bytes, case.stop) for _ in range(case.request.n)]
        self.left_in: State | None = None
        self.is_scheduled = False
        self.is_preempted = False

    @property
    def is_live(self) -> bool:
        return not all(reader.has_ended for reader in self.readers)

    @property
    def state(self) -> State:
        if not self.is_scheduled:
            return "waiting"
        if self.is_preempted:
            return "preempted"
        return "decoding" if any(reader.num_tokens for reader in self.readers) else "prefill"

    def has_left(self, sibling: int) -> bool:
        """Whether its client gave this answer up."""
        departure = self.case.departure
        return self.left_in is not None and departure is not None and departure.sibling in (None, sibling)

    def is_leaving(self, *, is_in_flight: bool) -> bool:
        departure = self.case.departure
        if departure is None or departure.is_in_flight != is_in_flight or self.left_in is not None:
            return False
        if departure.sibling is not None:
            return self.readers[departure.sibling].num_tokens >= departure.num_tokens
        if any(reader.num_tokens >= departure.num_tokens for reader in self.readers):
            return True
        return self.state == "preempted" or self.state == departure.state != "decoding"


class PressureRun:
    """Owns the clients. The engine is `core`, around the executor `watched`.

    Requests come as long as those that are there would take less than `DEMAND` pools of `pool_tokens`.
    No more than `max_steps` are made.
    """

    def __init__(
        self,
        core: EngineCore,
        watched: WatchedExecutor,
        cases: Sequence[Case],
        token_bytes: Callable[[int], bytes],
        *,
        pool_tokens: int,
        max_steps: int,
    ) -> None:
        self._core = core
        self._watched = watched
        self._clients = {case.request.request_id: Client(case, token_bytes) for case in cases}
        self._to_come = deque(self._clients.values())
        self._live: dict[str, Client] = {}
        self.pool_tokens = pool_tokens
        self._max_steps = max_steps
        self.num_steps = 0
        self.peak_demand_tokens = 0
        self.aborted: Counter[str] = Counter()
        """Departures by the state in which they found the request."""
        self.errors: list[str] = []

    @property
    def clients(self) -> list[Client]:
        return list(self._clients.values())

    @property
    def num_ended(self) -> int:
        return len(self._clients) - len(self._to_come) - len(self._live)

    def run(self, on_step: Callable[[], None] = lambda: None) -> None:
        """To the end of all, to the last step, or to the first contradiction."""
        self._watched.on_plan = self._step_in_flight
        while (self._to_come or self._core.has_work()) and self.num_steps < self._max_steps:
            self._arrive()
            self._leave(self._live.values(), is_in_flight=False)
            if self._core.has_work():
                self._take(self._core.step())
            self.num_steps += 1
            on_step()
            try:
                self._core.check_integrity()
            except IntegrityError as error:
                self.errors.append(f"step {self.num_steps}: {error}")
                break
        self._watched.on_plan = lambda plan: None

    def _arrive(self) -> None:
        demand = sum(client.case.demand_tokens for client in self._live.values())
        while self._to_come and demand < DEMAND * self.pool_tokens:
            client = self._to_come.popleft()
            try:
                self._core.add(client.case.request)
            except RequestRefused as refusal:
                self.errors.append(f"{client.case.request.request_id} was refused: {refusal.message}")
                continue
            self._live[client.case.request.request_id] = client
            demand += client.case.demand_tokens
        self.peak_demand_tokens = max(self.peak_demand_tokens, demand)

    def _step_in_flight(self, plan: StepPlan) -> None:
        for request_id in plan.preempted:
            self._live[request_id].is_preempted = True
        computed = {row.request_id: self._live[row.request_id] for row in plan.scheduled}
        for client in computed.values():
            client.is_scheduled, client.is_preempted = True, False
        self._leave(computed.values(), is_in_flight=True)

    def _leave(self, clients: Iterable[Client], *, is_in_flight: bool) -> None:
        for client in [client for client in clients if client.is_leaving(is_in_flight=is_in_flight)]:
            assert client.case.departure is not None
            client.left_in = client.state
            outputs = self._core.abort(client.case.request.request_id, client.case.departure.sibling)
            self.aborted[f"{client.left_in}, in flight" if is_in_flight else client.left_in] += bool(outputs)
            self._take(outputs)

    def _take(self, outputs: Iterable[RequestOutput]) -> None:
        """What a stop string has ended is given up, as a gateway does."""
        for output in outputs:
            client = self._live.get(output.request_id)
            if client is None:
                self.errors.append(f"{output.request_id} had an output after its end")
                continue
            reader = client.readers[output.sibling]
            reader.take(output)
            if reader.is_over and not reader.has_ended:
                self._take(self._core.abort(output.request_id, output.sibling))
            if not client.is_live:
                self._live.pop(output.request_id, None)
