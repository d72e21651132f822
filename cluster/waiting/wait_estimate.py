"""How long a request will wait at this gateway until it may leave for a replica, and until when it may.

What stands before it takes the time that replicas need for it (`replica_rates.py`). Who comes later and goes
first takes time, too: other tenants' requests (`rivals.py`), and whatever is in no book here, such as other
gateways', which is learned from waits that have ended (`slowdown.py`). What passes after its turn, before its
first token comes, is learned from the first tokens that came (`first_tokens.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from cluster.waiting.decayed_mean import DecayedMean
from cluster.waiting.first_tokens import FirstTokens
from cluster.waiting.fleet import Fleet
from cluster.waiting.replica_rates import ReplicaRates
from cluster.waiting.rivals import Rivals
from cluster.waiting.slowdown import Slowdown
from tenants.fair_queue import FairQueue
from tenants.queued import Queued, Share, Work

NOTHING = Work()
MOST_AFTER_TURN = 0.5
"""What follows its turn counts as this part of a request's time at most: else a long prompt, or what was
learned while all was slow, would keep it from replicas that have nothing to do."""
ERROR_FADES = 1 / 16
"""So much less does the mean error weigh its past at each wait that ends."""


class Wait(NamedTuple):
    """Of a request, in seconds until its turn."""

    line_s: float
    """As far as this gateway's books say."""
    drain_s: float
    """As waits have been of late: the time in which replicas work."""
    from_now_s: float
    """With the time until the first replica is there, and with the help of the next one."""


class WaitEstimator:
    """Owns what this gateway has learned of waits, and how wrong it was.

    `on_told(predicted_s, actual_s)` hears of each wait that ended.
    """

    def __init__(self, on_told: Callable[[float, float], None] = lambda predicted_s, actual_s: None) -> None:
        self.rates = ReplicaRates()
        self._on_told = on_told
        self._rivals = Rivals()
        self._slowdown = Slowdown()
        self._error_s = DecayedMean(0.0, 1.0)
        self._first_tokens: defaultdict[tuple[bool, int], FirstTokens] = defaultdict(FirstTokens)
        """By standing: inside an engine, too, who weighs more goes first."""

    def took(self, entry: Queued, fleet: Fleet, now: float) -> None:
        """A request left for a replica."""
        self._rivals.took(entry.share, self.rates.takes_s(_work(entry), fleet), now)

    def told(self, share: Share, predicted: Wait, actual_s: float, now: float) -> None:
        """A wait that was predicted has ended; time in which no replica was there is not part of it."""
        self._slowdown.told(share, predicted.line_s, actual_s, now)
        self._error_s.fade(1 - ERROR_FADES)
        self._error_s.add(actual_s - predicted.drain_s, 1.0)
        self._on_told(predicted.drain_s, actual_s)

    def first_token_came(self, share: Share, uncached_tokens: int, after_turn_s: float) -> None:
        """Of a request that left for a replica."""
        beyond_s = after_turn_s - self.rates.prefill_s(uncached_tokens)
        self._first_tokens[share.standing].came(beyond_s)

    @property
    def mean_error_s(self) -> float:
        """Actual − predicted, on the mean of the last waits; positive: they were longer."""
        return self._error_s.value

    @property
    def after_turn_s(self) -> float:
        """What interactive requests, of the weight that fares worst, are reckoned to wait after their turn
        beside their own prefill."""
        waits = (seen.most_s for (is_interactive, _), seen in self._first_tokens.items() if is_interactive)
        return max(waits, default=0.0)

    def wait(
        self,
        line: FairQueue,
        share: Share,
        fleet: Fleet,
        now: float,
        *,
        without_lower: bool = False,
        lower_yield: bool = False,
        besides: Work = NOTHING,
    ) -> Wait:
        """Of a new request of `share` in `line`.

        `without_lower`: if all in line that stand lower were gone; `lower_yield`: if no more of them came;
        `besides`: what else of its tenant goes before it.
        """
        ahead = line.work_ahead(share, without_lower=without_lower).plus(besides)
        ahead_s = self.rates.until_turn_s(ahead, fleet)
        own_s = self.rates.until_turn_s(line.work_of(share).plus(besides), fleet)
        line_s = max(ahead_s, own_s * self._rivals.stretch(share, now, without_lower=lower_yield))
        drain_s = line_s * self._slowdown.factor(share, now)
        return Wait(line_s, drain_s, _from_now_s(drain_s, fleet, now))

    def apart_s(self, entry: Queued, fleet: Fleet, now: float) -> float:
        """Between two turns of its tenant, if both are like it."""
        stretched_s = self.rates.takes_s(_work(entry), fleet) * self._rivals.stretch(entry.share, now)
        return stretched_s * self._slowdown.factor(entry.share, now)

    def turn_by_s(self, entry: Queued, by_s: float, now: float) -> float:
        """Until when its turn may come, if its first token is to come by `by_s`."""
        beyond_s = self._first_tokens[entry.share.standing].most_s
        after_turn_s = beyond_s + self.rates.prefill_s(entry.uncached_tokens)
        return by_s - min(after_turn_s, MOST_AFTER_TURN * (by_s - now))


def _work(entry: Queued) -> Work:
    return Work(entry.input_service, entry.num_siblings)


def _from_now_s(drain_s: float, fleet: Fleet, now: float) -> float:
    """A replica on its way of which nobody knows when it comes is not counted."""
    until_next_s = fleet.until_next_s(now)
    if until_next_s is None:
        return drain_s
    if fleet.num_replicas == 0:
        return until_next_s + drain_s
    left_s = max(0.0, drain_s - until_next_s)
    return drain_s - left_s / (fleet.num_replicas + 1)
