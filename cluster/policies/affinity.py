"""Pure affinity: always where most of the prompt is cached, however long the queue there.

Algorithm: the replica that claims the longest prefix. Where several claim as much, or nobody claims any,
rendezvous hashing: the one that scores highest under a hash of (affinity key, replica id), so that prompts
that begin alike meet without any index, and a replica that comes or goes moves only the keys that it wins
or loses. A prompt without a key has nothing to be kept together with: any replica, by the generator.
Failure mode: it never balances. A popular prefix is one replica's alone, and its requests queue there while
the others idle. It is here to be compared with: no policy that knows of load gets more hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random

from cluster.routing import ReplicaLoad, RoutingPrompt


class Affinity:
    def choose(self, candidates: Sequence[ReplicaLoad], prompt: RoutingPrompt, rng: Random) -> str:
        most = max(replica.cached_tokens for replica in candidates)
        replica_ids = [replica.replica_id for replica in candidates if replica.cached_tokens == most]
        if not prompt.affinity_key:
            return rng.choice(replica_ids)
        return max(replica_ids, key=lambda replica_id: _score(prompt.affinity_key, replica_id))


def _score(affinity_key: bytes, replica_id: str) -> bytes:
    return blake2b(replica_id.encode(), key=affinity_key[:64], digest_size=8).digest()
