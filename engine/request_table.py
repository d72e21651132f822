"""The live requests by state. A request is in one of the two lists, or finished and in none."""

from __future__ import annotations

from engine.request_state import RequestState


class RequestTable:
    """Owns who waits and who runs; every change of a request's status is made here."""

    def __init__(self) -> None:
        self.waiting: dict[str, RequestState] = {}
        self.running: dict[str, RequestState] = {}

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def find(self, request_id: str) -> RequestState | None:
        return self.waiting.get(request_id) or self.running.get(request_id)

    def add(self, state: RequestState) -> None:
        self.waiting[state.request_id] = state

    def admit(self, state: RequestState) -> None:
        state.status = "running"
        self.running[state.request_id] = self.waiting.pop(state.request_id)

    def preempt(self, state: RequestState, now: float) -> None:
        state.preempt(now)
        self.waiting[state.request_id] = self.running.pop(state.request_id)

    def finish(self, state: RequestState) -> None:
        state.status = "finished"
        self.waiting.pop(state.request_id, None)
        self.running.pop(state.request_id, None)
