"""The live requests by state. A request is in one of the two sets, or finished and in none."""

from __future__ import annotations

from engine.policy import SchedulingPolicy
from engine.request_state import RequestState


class RequestTable:
    """Owns who waits and who runs; every change of a request's status is made here, and the policy told.

    `waiting` and `running` are sets that keep the order in which requests entered them.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self.waiting: dict[RequestState, None] = {}
        self.running: dict[RequestState, None] = {}
        self.num_seats_taken = 0
        """Places in the batch; siblings that are still to be forked have theirs already."""
        self._siblings: dict[str, list[RequestState]] = {}

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def find(self, request_id: str) -> list[RequestState]:
        """The live siblings of a request."""
        return list(self._siblings.get(request_id, ()))

    def add(self, state: RequestState) -> None:
        self.waiting[state] = None
        self._siblings.setdefault(state.request_id, []).append(state)
        self._policy.arrived(state)

    def fork(self, sibling: RequestState) -> None:
        """A sibling enters where its leader runs, and takes the seat that was kept for it."""
        sibling.status = "running"
        self.running[sibling] = None
        self._siblings[sibling.request_id].append(sibling)

    def admit(self, state: RequestState) -> None:
        state.status = "running"
        del self.waiting[state]
        self.running[state] = None
        self.num_seats_taken += state.num_seats
        self._policy.left(state)

    def preempt(self, state: RequestState, now: float) -> None:
        """Its blocks were needed."""
        state.preempt(now)
        self._wait_again(state)

    def restart(self, state: RequestState) -> None:
        """Its blocks were lost."""
        state.restart()
        self._wait_again(state)

    def _wait_again(self, state: RequestState) -> None:
        del self.running[state]
        self.waiting[state] = None
        self.num_seats_taken -= state.num_seats
        self._policy.arrived(state)

    def finish(self, state: RequestState) -> None:
        if state.status == "running":
            self.num_seats_taken -= state.num_seats
        else:
            self._policy.left(state)
        state.status = "finished"
        self.waiting.pop(state, None)
        self.running.pop(state, None)
        siblings = self._siblings[state.request_id]
        siblings.remove(state)
        if not siblings:
            del self._siblings[state.request_id]
