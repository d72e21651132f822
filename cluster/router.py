"""The thin Ray request router: it maps the replica id that our policy chose to a candidate.

Algorithm: every handle call is pinned with `replica=<id>`; the call's future is set at once to that
replica, or to `ReplicaGone`; so it is, too, when a call has just not reached that replica.
Failure mode: with no candidate at all Ray does not ask us and the call waits, so callers bound every
call with a timeout.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from cluster.replica_registry import ReplicaGone, watch


class PinnedRouter(RequestRouter):  # type: ignore[misc]  # Ray ships no types
    def initialize_state(self, **kwargs: Any) -> None:
        self._unreached: set[str] = set()
        """Replicas on the list that the last call did not reach."""
        self._watch = watch(self._deployment_id.app_name)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._tell()

    def on_replica_actor_died(self, replica_id: Any) -> None:
        super().on_replica_actor_died(replica_id)
        self._tell()

    def on_replica_actor_unavailable(self, replica_id: Any) -> None:
        super().on_replica_actor_unavailable(replica_id)
        self._unreached.add(replica_id.unique_id)

    def _tell(self) -> None:
        listed = {replica.replica_id.unique_id for replica in self._replicas_list}
        self._unreached &= listed  # the others are never asked for again
        self._watch.update(listed)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        pinned = pending_request.kwargs.get("replica") if pending_request else None
        if pending_request is None or pinned is None:
            if pending_request is not None:
                pending_request.routing_context.should_backoff = True
            return [candidate_replicas]
        hits = [replica for replica in candidate_replicas if replica.replica_id.unique_id == pinned]
        # Ray tries a call again and again, without a pause, until it hears that the replica is dead: a
        # thousand times in 40 ms. Whoever called knows better what to do.
        is_reached = pinned not in self._unreached
        self._unreached.discard(pinned)
        # Set the future ourselves: Ray matches pending calls by the HTTP request's id, which all
        # calls of one request share, and would otherwise spin on the ones it cannot match.
        if not pending_request.future.done():
            if hits and is_reached:
                pending_request.future.set_result(hits[0])
            else:
                pending_request.future.set_exception(ReplicaGone(pinned))
        return [hits or candidate_replicas]
