"""How fast replicas take requests off a gateway's hands, learned from what they tell.

    time = max(tokens ÷ prefill rate, requests that lack a seat ÷ seats freed a second) ÷ this gateway's part

The slower of the two rules: whoever waits for a seat waits while others' prompts are computed, and their sum
would count the same seconds twice.

- The prefill rate is learned where a replica is short of tokens: prompt tokens are queued, and it has seats
  to spare. Where seats are short, what it prefills is only the least that it could.
- Of several gateways each has a part of what replicas do: as much as its windows are of all (`fleet.py`).
- Seats are freed at `num_seats` ÷ the mean time that a request holds one (Little's law). Counting how many
  were freed of late would say "none ever" at the start of each burst, until the first answers end.

Failure mode: replicas that are short of blocks rather than of seats or tokens look as if tokens were short; a
change in the length of prompts is learned late then, by one time constant.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from cluster.waiting.decayed_mean import DecayedMean
from cluster.waiting.fading import kept_after
from cluster.waiting.fleet import Fleet
from engine.counters import EngineCounters
from tenants.queued import Work

TIME_CONSTANT_S = 5.0
COLD_PREFILL_TOKENS_PER_S = 2000.0
"""Of one replica, until some is measured. It counts as one second of measurement."""
COLD_SEAT_S = 5.0
"""How long a request holds its seat, until some have ended."""
COLD_SEATS = 32
FEW_ENDED = 16
"""The mean time in a seat is of so many requests at least, however long ago they ended."""
MAX_GAP_S = 2.0
"""What a replica did while nobody looked for longer belongs to no rate."""


class _Seen(NamedTuple):
    counters: EngineCounters
    at: float

    @property
    def uncached_tokens(self) -> int:
        return self.counters.prefix_queries_tokens_total - self.counters.prefix_hits_tokens_total

    def is_short_of_tokens(self, num_seats: float) -> bool:
        return self.counters.queued_tokens > 0 and self.counters.requests_running < num_seats


class ReplicaRates:
    """Owns what this gateway has learned of how fast a replica is."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._num_seats: float = COLD_SEATS
        """Of one replica."""
        self._short_of_tokens = DecayedMean(COLD_PREFILL_TOKENS_PER_S, 1.0)
        self._at_least = DecayedMean(0.0, 1.0)
        self._seat_s = DecayedMean(COLD_SEAT_S, 1.0)
        self._ended_at = -math.inf
        self.part = 1.0
        """Of what replicas do, what this gateway gets of late. Windows move with every request that waits."""
        self._fleet_seen_at = -math.inf

    # --- what is learned --------------------------------------------------------------------

    def see(self, fleet: Fleet, now: float) -> None:
        """The replicas as they are now."""
        if fleet.num_replicas:
            self._num_seats = fleet.num_seats / fleet.num_replicas
            kept = kept_after(now - self._fleet_seen_at, TIME_CONSTANT_S)
            self.part += (1 - kept) * (fleet.part - self.part)
            self._fleet_seen_at = now

    def observe(self, replica_id: str, counters: EngineCounters, now: float) -> None:
        """A replica's newest counters, looked at every 0.1 s: what it did since the last look.

        One that started anew begins anew. One that is looked at no more is gone, `MAX_GAP_S` later.
        """
        last = self._seen.get(replica_id)
        seen = self._seen[replica_id] = _Seen(counters, now)
        self._forget_gone(now)
        if last is not None and seen.uncached_tokens >= last.uncached_tokens and now - last.at <= MAX_GAP_S:
            self._learn(last, seen)

    def _forget_gone(self, now: float) -> None:
        self._seen = {one: seen for one, seen in self._seen.items() if now - seen.at <= MAX_GAP_S}

    def _learn(self, last: _Seen, seen: _Seen) -> None:
        """Of n replicas each is one n-th of the mean."""
        seconds = (seen.at - last.at) / len(self._seen)
        tokens = (seen.uncached_tokens - last.uncached_tokens) / len(self._seen)
        rates = [self._at_least]
        # Either end: a prompt is counted when it is begun, and computed in the steps after that.
        if any(end.is_short_of_tokens(self._num_seats) for end in (last, seen)):
            rates.append(self._short_of_tokens)
        for rate in rates:
            rate.fade(kept_after(seconds, TIME_CONSTANT_S))
            rate.add(tokens, seconds)

    def ended(self, seat_s: float, now: float) -> None:
        """A request has held its seat for `seat_s`."""
        passed_s = min(now - self._ended_at, TIME_CONSTANT_S / FEW_ENDED)
        self._seat_s.fade(kept_after(passed_s, TIME_CONSTANT_S))
        self._seat_s.add(seat_s, 1.0)
        self._ended_at = now

    # --- what it means ----------------------------------------------------------------------

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of one replica: uncached prompt tokens."""
        return max(self._short_of_tokens.value, self._at_least.value, 1.0)

    @property
    def seat_s(self) -> float:
        """How long a request holds its seat, on the mean."""
        return self._seat_s.value

    def prefill_s(self, uncached_tokens: float) -> float:
        """A prompt's own, on one replica."""
        return uncached_tokens / self.prefill_tokens_per_s

    def until_turn_s(self, ahead: Work, fleet: Fleet) -> float:
        """Until all of `ahead` has left and a seat is free for one more, if replicas do nothing else.

        From when the first one comes, while none is there: all of its seats are free then.
        """
        free_seats = fleet.free_seats if fleet.num_replicas else self._num_seats
        return self.takes_s(ahead._replace(seats=max(0.0, ahead.seats + 1 - self.part * free_seats)), fleet)

    def takes_s(self, work: Work, fleet: Fleet) -> float:
        """Of this gateway's part of all replicas' time, or of the first one's while none is there."""
        num_seats = fleet.num_seats or self._num_seats
        for_tokens = work.tokens / (self.prefill_tokens_per_s * max(1, fleet.num_replicas))
        return max(for_tokens, work.seats * self.seat_s / num_seats) / self.part
