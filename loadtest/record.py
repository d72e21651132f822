"""What is kept of one request: when it was due, when its tokens came, how it ended."""

from __future__ import annotations

from itertools import pairwise

import msgspec

OK = "ok"
REJECTED = frozenset({"429", "503"})
"""Statuses by which a server sheds load; every other end that is not `OK` is an error."""


class RequestRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """All times are seconds of one monotonic clock. Latencies count from `intended_at`.

    `token_times` are the arrivals of pieces of text; a piece may hold several tokens, and a token no
    text. `last_token_at` is the arrival of the finish reason, which comes with the last token. `status`
    is `OK`, an HTTP status, or a word for what else went wrong.
    """

    tenant: str
    intended_at: float
    sent_at: float
    finished_at: float
    status: str
    token_times: tuple[float, ...] = ()
    last_token_at: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    replica: str = ""
    """The engine that answered, if the server named it."""
    reason: str = ""
    """What the server said of a refusal, if it did."""

    @property
    def is_ok(self) -> bool:
        return self.status == OK

    @property
    def is_rejected(self) -> bool:
        return self.status in REJECTED

    @property
    def send_lag_s(self) -> float:
        """How much later than intended the client sent it."""
        return self.sent_at - self.intended_at

    @property
    def e2e_s(self) -> float:
        return self.finished_at - self.intended_at

    @property
    def ttft_s(self) -> float | None:
        """None if the answer was not streamed."""
        return self.token_times[0] - self.intended_at if self.token_times else None

    @property
    def itl_s(self) -> list[float]:
        """Each gap between two pieces of text."""
        return [later - earlier for earlier, later in pairwise(self.token_times)]

    @property
    def tpot_s(self) -> float | None:
        """Mean time of an output token after the first; None of fewer than two, or not streamed."""
        if not self.token_times or self.last_token_at is None or self.output_tokens < 2:
            return None
        return (self.last_token_at - self.token_times[0]) / (self.output_tokens - 1)


class LoadRun(msgspec.Struct, frozen=True, kw_only=True):
    """One load test: what ended, and what was cut off by its user's interrupt."""

    records: tuple[RequestRecord, ...]
    started_at: float
    ended_at: float
    concurrency: int
    offered_s: float | None = None
    """For how long requests were due, whatever became of them; None in a closed loop."""
    num_unfinished: int = 0
    is_interrupted: bool = False

    @property
    def elapsed_s(self) -> float:
        return self.ended_at - self.started_at

    @property
    def num_sent(self) -> int:
        return len(self.records) + self.num_unfinished
