"""What a gateway routed to a replica and does not see in its counters yet."""

from __future__ import annotations

from collections.abc import Mapping


class InFlightLoad:
    """Owns the uncached tokens of each such request, by its id; of one replica.

    What was routed counts until the second message after its reply: the replica replies at once and takes the
    request in after the step that is running, so that step's message does not hold it yet.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._acknowledged: set[str] = set()
        """Accepted since the last message."""
        self._taken_in: set[str] = set()
        """Accepted before the last message; the next one's counters hold them for certain."""

    @property
    def tokens(self) -> Mapping[str, int]:
        return self._tokens

    def routed(self, request_id: str, uncached_tokens: int) -> None:
        self._tokens[request_id] = uncached_tokens

    def accepted(self, request_id: str) -> None:
        self._acknowledged.add(request_id)

    def reported(self) -> None:
        """A message with counters came."""
        for request_id in self._taken_in:
            self._tokens.pop(request_id, None)
        self._taken_in, self._acknowledged = self._acknowledged, set()

    def drop(self, request_id: str) -> None:
        """It ended, or was never there."""
        self._tokens.pop(request_id, None)
        self._acknowledged.discard(request_id)
        self._taken_in.discard(request_id)

    def clear(self) -> None:
        self._tokens.clear()
        self._acknowledged.clear()
        self._taken_in.clear()
