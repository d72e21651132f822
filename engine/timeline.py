"""When things happened to one request, in seconds of the engine's clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import Timing


@dataclass(slots=True)
class Preemption:
    """One interruption: from the loss of its blocks to the first step after it."""

    preempted_s: float
    resumed_s: float | None = None
    num_recomputed_tokens: int = 0
    """Computed once more since; what the prefix cache gave back is not among them."""

    def lasted_s(self, now: float) -> float:
        return (now if self.resumed_s is None else self.resumed_s) - self.preempted_s


@dataclass(slots=True)
class Timeline:
    """Owns the stamps of one sibling. What has not happened is None."""

    arrival_s: float
    """Accepted by the replica."""
    queued_s: float
    """Taken up by the scheduler; a step may have been running in between."""
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    preemptions: list[Preemption] = field(default_factory=list)
    leader_preempted_s: float = 0.0
    """Of a sibling: what its leader lost to preemption before it was there."""

    @property
    def num_preemptions(self) -> int:
        return len(self.preemptions)

    def scheduled(self, now: float) -> None:
        if self.first_scheduled_s is None:
            self.first_scheduled_s = now
        if self.preemptions and self.preemptions[-1].resumed_s is None:
            self.preemptions[-1].resumed_s = now

    def recomputed(self, num_tokens: int) -> None:
        """A step has computed so many tokens that a preemption had thrown away."""
        if num_tokens:
            self.preemptions[-1].num_recomputed_tokens += num_tokens

    def sampled(self, now: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = now

    def preempted(self, now: float) -> None:
        if self.first_scheduled_s is None:  # admitted in this very step: its wait in the queue is over
            self.first_scheduled_s = now
        self.preemptions.append(Preemption(now))

    def fork(self) -> Timeline:
        """A sibling's: it waited and began with its leader, and has made no token of its own."""
        return Timeline(
            self.arrival_s,
            self.queued_s,
            self.first_scheduled_s,
            leader_preempted_s=sum(one.lasted_s(0.0) for one in self.preemptions),  # all are over
        )

    def finished(self, now: float) -> Timing:
        """Where the time until the end went. What the request never reached took 0 s."""
        self.finished_s = now
        scheduled = now if self.first_scheduled_s is None else self.first_scheduled_s
        first_token = now if self.first_token_s is None else self.first_token_s
        return Timing(
            queued_s=scheduled - self.arrival_s,
            prefill_s=first_token - scheduled,
            decode_s=now - first_token,
            preempted_s=self.leader_preempted_s + sum(one.lasted_s(now) for one in self.preemptions),
            num_preemptions=len(self.preemptions),
            num_recomputed_tokens=sum(one.num_recomputed_tokens for one in self.preemptions),
        )
