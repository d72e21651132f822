"""One request inside the engine: how far `num_computed_tokens` has caught up with `num_tokens`.

There are no phases. A prefill chunk, a prefix hit, a decode, a preemption and a resumption only
move these two numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from engine.block_hash import BlockHash, hash_block
from engine.config import EngineConfig
from engine.request import FinishReason, Request, RequestOutput
from engine.step import ScheduledRequest
from engine.timeline import Timeline

Status = Literal["waiting", "running", "finished"]

MAX_PREEMPTIONS = 3
"""After so many a request is reserved: it comes back only with room up to its end, and stays."""


class RequestState:
    """Owns a request's tokens, its progress and its block table. Changed by the scheduler only."""

    def __init__(self, request: Request, config: EngineConfig, *, arrival_order: int, now: float) -> None:
        self.request = request
        self.arrival_order = arrival_order
        self.status: Status = "waiting"
        self.timeline = Timeline(now)
        self.num_computed_tokens = 0
        self.block_table: list[int] = []
        self.num_registered_blocks = 0
        """Leading blocks of the table that bear a name in the prefix cache."""
        self.num_cached_tokens: int | None = None
        """Prompt tokens that its first admission found cached; None before."""
        self.max_num_tokens = min(
            len(request.prompt_token_ids) + request.sampling.max_tokens, config.max_model_len
        )
        """Prompt + output that it can grow to."""
        self._block_size = config.block_size
        self._token_ids = [*request.prompt_token_ids, *request.output_token_ids]
        self._block_hashes = [BlockHash(block_hash) for block_hash in request.block_hashes]
        self._has_told_cached_tokens = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self._token_ids) - len(self.request.prompt_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self._token_ids) - self.num_computed_tokens

    @property
    def num_preemptions(self) -> int:
        return self.timeline.num_preemptions

    @property
    def is_reserved(self) -> bool:
        return self.timeline.num_preemptions >= MAX_PREEMPTIONS

    @property
    def num_promised_tokens(self) -> int:
        """Tokens that admission promised room for."""
        return self.max_num_tokens if self.is_reserved else len(self._token_ids)

    @property
    def last_token_id(self) -> int:
        return self._token_ids[-1]

    def block_hash(self, index: int) -> BlockHash:
        """Hash of the `index`-th full block of prompt + output; the chain grows as it is asked for."""
        while len(self._block_hashes) <= index:
            start = len(self._block_hashes) * self._block_size
            parent = self._block_hashes[-1] if self._block_hashes else self.request.hash_root
            self._block_hashes.append(hash_block(parent, self._token_ids[start : start + self._block_size]))
        return self._block_hashes[index]

    def block_hashes(self) -> Iterator[BlockHash]:
        return (self.block_hash(index) for index in range(len(self._token_ids) // self._block_size))

    def append(self, token_id: int, now: float) -> None:
        self._token_ids.append(token_id)
        self.timeline.sampled(now)

    def preempt(self, now: float) -> None:
        """Back to nothing computed; its blocks are already released."""
        self.status = "waiting"
        self.num_computed_tokens = 0
        self.timeline.preempted(now)

    def scheduled(self, num_scheduled_tokens: int) -> ScheduledRequest:
        """The next tokens to compute. Sampled when they reach the end of what is known."""
        end = self.num_computed_tokens + num_scheduled_tokens
        return ScheduledRequest(
            request_id=self.request_id,
            token_ids=tuple(self._token_ids[self.num_computed_tokens : end]),
            num_computed_tokens=self.num_computed_tokens,
            block_table=tuple(self.block_table),
            output_index=self.num_output_tokens if end == self.num_tokens else None,
            sampling=self.request.sampling,
            sibling=self.request.sibling,
        )

    def token_output(self, finish_reason: FinishReason | None, now: float) -> RequestOutput:
        """Tells the newest token."""
        return self._output((self.last_token_id,), finish_reason, None, now)

    def final_output(
        self, finish_reason: FinishReason, now: float, error_code: str | None = None
    ) -> RequestOutput:
        """Tells an end that came without a token."""
        return self._output((), finish_reason, error_code, now)

    def _output(
        self,
        token_ids: tuple[int, ...],
        finish_reason: FinishReason | None,
        error_code: str | None,
        now: float,
    ) -> RequestOutput:
        num_cached_tokens = None if self._has_told_cached_tokens else self.num_cached_tokens or 0
        self._has_told_cached_tokens = True
        return RequestOutput(
            request_id=self.request_id,
            attempt=self.request.attempt,
            sibling=self.request.sibling,
            first_output_index=self.num_output_tokens - len(token_ids),
            token_ids=token_ids,
            finish_reason=finish_reason,
            error_code=error_code,
            num_cached_tokens=num_cached_tokens,
            timing=None if finish_reason is None else self.timeline.timing(now),
        )
