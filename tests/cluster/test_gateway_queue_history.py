"""Random histories of the gateway's queue beside a plain list: nothing is lost, the lowest is shed first."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.waiting.arrival import Arrival
from cluster.waiting.config import WaitingConfig
from cluster.waiting.fleet import Fleet
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting.replica_rates import COLD_PREFILL_TOKENS_PER_S
from cluster.waiting.shedding import MAX_RETRY_AFTER_S, MIN_RETRY_AFTER_S, Rejection
from cluster.waiting.wait_estimate import WaitEstimator
from tenants.fair_queue import Share
from tests.cluster.waiting_rig import BATCH, FREE, PAID, an_arrival

CONFIG = WaitingConfig(batch_deadline_s=60.0, max_waiting=8, max_held=4)
SEATS = 4
SHARES = (PAID, Share("other", 4, "interactive"), FREE, BATCH, Share("hobby", 1, "batch"))


class Come(NamedTuple):
    share: Share
    tokens: int
    timeout_s: float
    max_queue_len: int | None
    is_return: bool


class Turn(NamedTuple):
    has_credit: bool
    """Whether any replica has."""


class Leave(NamedTuple):
    which: int


class Pass(NamedTuple):
    seconds: float


class Change(NamedTuple):
    num_replicas: int


Deed = Come | Turn | Leave | Pass | Change


def deeds() -> st.SearchStrategy[list[Deed]]:
    come = st.builds(
        Come,
        st.sampled_from(SHARES),
        st.integers(1, 20_000),
        st.sampled_from([1.0, 15.0, 600.0]),
        st.none() | st.integers(1, 4),
        st.booleans(),
    )
    other = st.one_of(
        st.builds(Turn, st.booleans()),
        st.builds(Leave, st.integers(0, 10)),
        st.builds(Pass, st.floats(0, 8)),
        st.builds(Change, st.sampled_from([0, 1, 1, 3])),
    )
    return st.lists(st.one_of(come, come, other), min_size=20, max_size=60)


class Waiting(NamedTuple):
    arrival: Arrival
    since_s: float
    held_s: float
    """Seconds without a replica before it came."""

    @property
    def turn_by_s(self) -> float:
        """Early enough to prefill its prompt; that takes no more than half of its time."""
        by_s = self.arrival.first_token_by_s
        prefill_s = self.arrival.uncached_tokens / COLD_PREFILL_TOKENS_PER_S
        return by_s - min(prefill_s, (by_s - self.since_s) / 2)


class History:
    """The queue, and beside it who waits, oldest first, and how everybody else ended."""

    def __init__(self) -> None:
        self.queue = GatewayQueue(WaitEstimator(), Random(0), CONFIG)
        self.now = 0.0
        self.held_s = 0.0
        self.num_replicas = 0
        self.num_come = 0
        self.waiting: dict[str, Waiting] = {}
        self.ended: dict[str, str] = {}
        self.change(Change(1))

    def do(self, deed: Deed) -> None:
        match deed:
            case Come():
                self.come(deed)
            case Turn(has_credit):
                self.turn(has_credit)
            case Leave(which):
                self.leave(which)
            case Pass(seconds):
                self.now += seconds
                self.held_s += seconds * (self.num_replicas == 0)
                self.expire()
            case Change():
                self.change(deed)
        assert list(self.waiting) == sorted(self.waiting, key=int)
        assert len(self.queue) == len(self.waiting)

    def change(self, change: Change) -> None:
        self.num_replicas = change.num_replicas
        num_seats = SEATS * change.num_replicas
        self.queue.see(Fleet(change.num_replicas, num_seats, num_seats), self.now)

    def end(self, entry_id: str, how: str) -> Waiting:
        assert entry_id not in self.ended
        self.ended[entry_id] = how
        return self.waiting.pop(entry_id)

    def is_late(self, one: Waiting) -> bool:
        served_until_s = self.now - (self.held_s - one.held_s)
        return self.now >= one.arrival.answer_by_s or served_until_s >= one.turn_by_s

    def expire(self) -> None:
        late = {entry_id for entry_id, one in self.waiting.items() if self.is_late(one)}
        told = self.queue.expire(self.now)
        assert sorted(told) == sorted(late)
        for entry_id in told:
            self.end(entry_id, "expired")

    def turn(self, has_credit: bool) -> None:
        arrival = self.queue.next(self.now, lambda entry: has_credit)
        assert (arrival is not None) == (has_credit and bool(self.waiting))
        if arrival is not None:
            assert not self.is_late(self.end(arrival.entry_id, "left by turn"))

    def leave(self, which: int) -> None:
        if which < len(self.waiting):
            entry_id = list(self.waiting)[which]
            assert self.queue.left(entry_id)
            self.end(entry_id, "cancelled")
            assert not self.queue.left(entry_id)

    def come(self, deed: Come) -> None:
        entry_id = str(self.num_come)
        self.num_come += 1
        arrival = an_arrival(
            entry_id,
            deed.share,
            deed.tokens,
            now=self.now,
            config=CONFIG,
            timeout_s=deed.timeout_s,
            max_queue_len=deed.max_queue_len,
            is_return=deed.is_return,
        )
        before = deepcopy(self.queue)
        refused, shed = self.queue.offer(arrival, self.now)
        for victim in shed:
            self.check_victim(victim.entry_id, arrival)
            self.check_told(victim.told)
            self.end(victim.entry_id, "shed")
        if refused is None:
            self.waiting[entry_id] = Waiting(arrival, self.now, self.held_s)
            self.check_caps(arrival)
        else:
            self.ended[entry_id] = "refused"
            assert shed == (), "nobody is shed for who does not come in"
            self.check_told(refused)
            self.check_nobody_lower_was_spared(before, arrival, refused)

    def check_victim(self, entry_id: str, above: Arrival) -> None:
        """It stands lower than `above`, nobody stands lower than it, and of its like it is the newest."""
        lowest = min(one.arrival.share.standing for one in self.waiting.values())
        assert lowest < above.share.standing
        alike = [name for name, one in self.waiting.items() if one.arrival.share.standing == lowest]
        assert entry_id == alike[-1]

    def check_caps(self, arrival: Arrival) -> None:
        assert len(self.waiting) <= CONFIG.max_waiting_at(self.num_replicas)
        tenant_ids = [one.arrival.share.tenant_id for one in self.waiting.values()]
        if arrival.max_queue_len is not None:
            assert tenant_ids.count(arrival.share.tenant_id) <= arrival.max_queue_len

    def check_told(self, told: Rejection) -> None:
        assert (told.status, told.code) in ((503, "overloaded"), (429, "queue_full"))
        assert told.retry_after_s is not None
        assert MIN_RETRY_AFTER_S <= told.retry_after_s <= MAX_RETRY_AFTER_S

    def check_nobody_lower_was_spared(
        self, before: GatewayQueue, arrival: Arrival, refused: Rejection
    ) -> None:
        """Who is refused at the top while others wait below would be refused without them, too."""
        lower = [
            entry_id
            for entry_id, one in self.waiting.items()
            if one.arrival.share.standing < arrival.share.standing
        ]
        if not arrival.is_return or arrival.share.standing != PAID.standing or not lower:
            return
        for entry_id in lower:
            before.left(entry_id)
        assert before.offer(arrival, self.now).refused is not None

    def finish(self) -> None:
        self.change(Change(1))
        while self.waiting:
            self.turn(has_credit=True)
        assert len(self.ended) == self.num_come
        assert self.queue.next(self.now) is None
        assert self.queue.next_deadline() is None
        self.queue.check(an_arrival("r", now=self.now + 1000), self.now + 1000)
        assert self.queue.num_promised == 0


@settings(max_examples=100, deadline=None)
@given(deeds())
def test_every_request_ends_once_and_whoever_stands_lower_goes_first(history: list[Deed]) -> None:
    room = History()
    for deed in history:
        room.do(deed)
    room.finish()
