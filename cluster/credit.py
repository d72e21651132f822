"""Credit: how much a gateway may have outstanding at a replica, and what it has there.

A replica tells each gateway its window (`cluster/admission_windows.py`): so many prompt tokens that are not
computed yet, and so many seats. A request may leave its tenant's queue while the gateway has less than that
there, of both, and may itself take it beyond; so a window may shrink below what is there.

Beside the window each gateway has a quarter of a step, however small its window is, for interactive tenants
of whom no prompt waits there, and of its seats a part. Else who fills the window would be alone in it
whenever another one comes, who would have to wait until a step ends to be sent, and for another one to be
computed. Inside the engine shares rule, so this takes nothing from anybody but the wait.

What is outstanding is counted by request, not as totals of what was sent and granted since the hello. A
submit of unknown fate, and one that comes when its link has broken and is attached anew, would shift totals
for as long as the link lives; a request takes nothing along but its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from engine.request import Request, RequestOutput


class Credit(NamedTuple):
    """A gateway's window at one replica."""

    tokens: int
    """Uncached prompt tokens that are not computed yet."""
    requests: int
    """Seats: requests and siblings that have not ended."""


NO_CREDIT = Credit(0, 0)
KEPT_OF_STEP = 4
"""One of so many of a step's tokens, at each gateway."""
KEPT_SEATS = 10
"""One of so many of a window's seats: as many as wait."""


class Wanted(NamedTuple):
    """What a request would take of the credit, and who is asking."""

    tokens: int
    """Uncached, of its prompt."""
    flow_id: str = ""
    priority: int = 0
    """As of `Request.priority`: 0 is interactive."""


@dataclass
class Prompts:
    """Tokens of prompts that are not computed yet. Long is, as for the scheduler, what takes more than half
    of a step."""

    short: int = 0
    long: int = 0

    @property
    def tokens(self) -> int:
        return self.short + self.long

    def count(self, tokens: int, *, is_long: bool) -> None:
        if is_long:
            self.long += tokens
        else:
            self.short += tokens


@dataclass
class Live:
    """What one request counts at the moment."""

    request: Request
    tokens: int
    seats: int
    is_first: bool
    """Of its flow: no other prompt of it was there."""
    is_computed: bool = False


class Outstanding:
    """Owns what one gateway has at one replica. Both sides keep one, by the same numbers.

    `Request.num_uncached_tokens` counts until the request's first output, which is when its prompt is
    computed, or its end; a seat counts for each sibling until that one ends. A prompt counts as one step of
    the replica at most: so in a window of two the next prompt is there when one is done, however long they
    are.
    """

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._step_tokens = max_num_batched_tokens
        self._live: dict[str, Live] = {}
        self._num_prompts: Counter[str] = Counter()
        """Not computed yet, of each flow."""
        self.prompts = Prompts()
        self.first_prompts = Prompts()
        """Those of them that are the first of interactive flows."""
        self.requests = 0

    @property
    def tokens(self) -> int:
        return self.prompts.tokens

    @property
    def live(self) -> Iterable[Live]:
        return self._live.values()

    def has_prompt_of(self, flow_id: str) -> bool:
        """Whether one of the flow's is not computed yet."""
        return flow_id in self._num_prompts

    def is_long(self, num_uncached_tokens: int) -> bool:
        return num_uncached_tokens > self._step_tokens / 2

    def add(self, request: Request) -> None:
        """An id that is there already counts once."""
        if request.request_id not in self._live:
            flow_id = request.flow.flow_id
            is_first = request.priority == 0 and not self.has_prompt_of(flow_id)
            tokens = min(request.num_uncached_tokens, self._step_tokens)
            self._live[request.request_id] = live = Live(request, tokens, request.n, is_first)
            self._num_prompts[flow_id] += 1
            self._count(live, tokens)
            self.requests += live.seats

    def hear(self, outputs: Iterable[RequestOutput]) -> None:
        """What a step made; of requests that are not here nothing happens."""
        for output in outputs:
            live = self._live.get(output.request_id)
            if live is not None:
                self._computed(live)
                if output.finish_reason is not None:
                    self._end_one(live)

    def drop(self, request_id: str) -> None:
        """It is not there, or will be ended at once."""
        live = self._live.pop(request_id, None)
        if live is not None:
            self._computed(live)
            self.requests -= live.seats

    def _computed(self, live: Live) -> None:
        """Its prompt, if it was not before."""
        if live.is_computed:
            return
        self._count(live, -live.tokens)
        live.tokens, live.is_computed = 0, True
        flow_id = live.request.flow.flow_id
        self._num_prompts[flow_id] -= 1
        if not self._num_prompts[flow_id]:
            del self._num_prompts[flow_id]

    def _end_one(self, live: Live) -> None:
        live.seats -= 1
        self.requests -= 1
        if not live.seats:
            del self._live[live.request.request_id]

    def _count(self, live: Live, tokens: int) -> None:
        is_long = self.is_long(abs(tokens))
        self.prompts.count(tokens, is_long=is_long)
        if live.is_first:
            self.first_prompts.count(tokens, is_long=is_long)


class Balance:
    """A gateway's side of the credit at one replica. Owns the window as told, and what was sent against it.

    The scheduler gives long prompts together at most half of a step while a shorter one waits. So here: to a
    short prompt the long ones count as half of the window at most. It need not wait until one of 32,000
    tokens is computed to its end.
    """

    def __init__(self, max_num_batched_tokens: int = 0) -> None:
        """`max_num_batched_tokens` of the replica."""
        self.outstanding = Outstanding(max_num_batched_tokens)
        self._kept_tokens = max_num_batched_tokens // KEPT_OF_STEP
        self._window: Credit | None = NO_CREDIT

    def hear(self, outputs: Iterable[RequestOutput], window: Credit | None) -> bool:
        """What a message tells; a `window` of None is no limit. Whether there is more credit than before.

        Before the first message there is none.
        """
        before = self._left()
        self.outstanding.hear(outputs)
        self._window = window
        return any(now > then for now, then in zip(self._left(), before, strict=True))

    def has_credit(self, wanted: Wanted | None = None) -> bool:
        """Whether this may be sent now; without anything wanted, whether something may."""
        if self._window is None:
            return True
        is_kept = wanted is None or self._is_kept_for(wanted)
        seats = self._window.requests - (0 if is_kept else self._window.requests // KEPT_SEATS)
        is_long = wanted is not None and self.outstanding.is_long(wanted.tokens)
        has_tokens = self._has_tokens(is_long) or (is_kept and self._has_kept_tokens(is_long))
        return has_tokens and self.outstanding.requests < seats

    def _has_tokens(self, is_long: bool) -> bool:
        assert self._window is not None
        prompts, tokens = self.outstanding.prompts, self._window.tokens
        return prompts.short + (prompts.long if is_long else min(prompts.long, tokens // 2)) < tokens

    def _has_kept_tokens(self, is_long: bool) -> bool:
        first = self.outstanding.first_prompts
        return (first.tokens if is_long else first.short) < self._kept_tokens

    def part_of(self, full: Credit) -> float:
        """Of all windows of the replica, which part this one is: of tokens or of seats, whichever is more.

        Of what is not short, each gateway has room to spare, whoever uses it.
        """
        own = self._window
        if own is None:
            return 1.0
        return min(1.0, max(own.tokens / full.tokens, own.requests / full.requests))

    def _is_kept_for(self, wanted: Wanted) -> bool:
        return wanted.priority == 0 and not self.outstanding.has_prompt_of(wanted.flow_id)

    def _left(self) -> tuple[float, float, float]:
        if self._window is None:
            return math.inf, math.inf, math.inf
        return (
            self._window.tokens - self.outstanding.tokens,
            self._window.requests - self.outstanding.requests,
            self._kept_tokens - self.outstanding.first_prompts.tokens,
        )
