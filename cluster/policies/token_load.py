"""Token load: the replica where this request makes everyone wait least, itself included.

Algorithm: token load = work ahead (`least_load.py`) + what it costs to compute again what is cached at
another replica, both in tokens to compute, so that they may be added and compared. A request goes to
its cached prefix until the work ahead there exceeds that of another replica by more than that cost; then
the prefix gets a second home. With nothing cached, or as much everywhere, it is least load. Ties are
broken by the generator.

A token that is computed again costs 2 + the number of requests that are there: this request waits for it, so
does each of those, and it takes the room of a cached one, that will have to be computed again. Who counts
only the first makes full caches churn: each spill evicts a prefix that is in use, whose miss makes
the next queue, and the busier the worse. But a copy is paid once and used by all who begin alike: their share
of the traffic is taken off, so that a hot prefix soon has as many homes as its load needs.

Failure mode: a claim may be out of date, and costs a prefill that was thought to be saved. Counters are as
old as the link's last message (≤ 0.25 s when idle), so that gateways that cannot see each other's requests
in flight may meet at the same idle replica. A prefix much shorter than `output_tokens` is not stuck to
when load differs: it is cheaper to compute again.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from cluster.policies.least_load import OUTPUT_TOKENS, work_ahead
from cluster.routing import ReplicaLoad, RoutingPrompt, choose_least


class TokenLoad:
    def __init__(self, output_tokens: int = OUTPUT_TOKENS) -> None:
        self._output_tokens = output_tokens

    def choose(self, candidates: Sequence[ReplicaLoad], prompt: RoutingPrompt, rng: Random) -> str:
        most = max(replica.cached_tokens for replica in candidates)

        def token_load(replica: ReplicaLoad) -> int:
            again = recompute_cost(replica, most - replica.cached_tokens, prompt.share)
            return again + work_ahead(replica, self._output_tokens)

        return choose_least(candidates, token_load, rng).replica_id


def recompute_cost(replica: ReplicaLoad, num_tokens: int, share: float) -> int:
    """Of computing `num_tokens` on the replica that are cached elsewhere, in tokens."""
    return round(num_tokens * (2 + replica.num_requests) * (1 - share))
