"""One request inside the engine: how far `num_computed_tokens` has caught up with `num_tokens`.

There are no phases. A prefill chunk, a prefix hit, a decode, a preemption and a resumption only
move these two numbers.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from engine.block_chain import BlockChain
from engine.config import EngineConfig
from engine.policy import Service
from engine.prefix_stats import PrefixStats
from engine.request import FinishReason, Flow, Request, RequestOutput, TokenLogprobs
from engine.step import ScheduledRequest
from engine.timeline import Timeline

Status = Literal["waiting", "running", "finished"]

MAX_PREEMPTIONS = 3
"""After so many a request is reserved: it comes back only with room up to its end, and stays."""


class RequestState:
    """Owns one sibling's tokens, its progress and its block table. Changed by the scheduler only.

    Until the prompt is computed the first sibling stands for all `n`; then the others are forked off.
    """

    def __init__(
        self,
        request: Request,
        config: EngineConfig,
        *,
        arrival_order: int,
        now: float,
        arrival_s: float | None = None,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.request = request
        self.num_unforked = request.n - 1
        """Siblings to come."""
        self.arrival_order = arrival_order
        self.status: Status = "waiting"
        self.timeline = Timeline(arrival_s=now if arrival_s is None else arrival_s, queued_s=now)
        self.num_computed_tokens = 0
        self.block_table: list[int] = []
        self.num_registered_blocks = 0
        """Leading blocks of the table that bear a name in the prefix cache."""
        self.num_cached_tokens: int | None = None
        """Prompt tokens that its first admission found cached; None before."""
        self.prefix_lookup: PrefixStats | None = None
        """What that found of the prompt, and why not more; None where it is not counted."""
        self.max_num_tokens = min(
            len(request.prompt_token_ids) + request.sampling.max_tokens, config.max_model_len
        )
        """Prompt + output that it can grow to."""
        self._eos_token_ids = () if request.sampling.ignore_eos else eos_token_ids
        self._end_token_ids = (*self._eos_token_ids, *request.sampling.stop_token_ids)
        self._config = config
        self._token_ids = [*request.prompt_token_ids, *request.output_token_ids]
        self.chain = BlockChain(
            request.hash_root, self._token_ids, config.block_size, request.block_hashes, request.branch
        )
        """The full blocks of prompt + output."""
        self._num_once_computed = 0
        self._num_served_tokens = len(request.prompt_token_ids) if request.output_token_ids else 0
        """Prompt tokens that counted as service; of a resumed request all did, where it began."""
        self._has_told_cached_tokens = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def sibling(self) -> int:
        return self.request.sibling

    @property
    def num_seats(self) -> int:
        """Places in the batch that it takes, its siblings to come included."""
        return 1 + self.num_unforked

    @property
    def flow(self) -> Flow:
        return self.request.flow

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
    def is_at_end(self) -> bool:
        """Whether the newest token ends the answer."""
        may_end = self.num_output_tokens > self.request.sampling.min_tokens
        return may_end and self._token_ids[-1] in self._end_token_ids

    def append(self, token_id: int, now: float) -> None:
        self._token_ids.append(token_id)
        self.timeline.sampled(now)

    def launch(self, num_tokens: int) -> Service:
        """So many more tokens are put into a step. What of the prompt counts as service with it."""
        num_cached_tokens = 0 if self._num_served_tokens else self.num_cached_tokens or 0
        already = self._num_served_tokens + num_cached_tokens
        start = max(already, self.num_computed_tokens)
        end = min(self.num_computed_tokens + num_tokens, self.num_prompt_tokens)
        self._num_served_tokens = max(already, end)
        return Service(max(0, end - start), num_cached_tokens)

    def advance(self, num_tokens: int) -> int:
        """So many more tokens are computed. Returns how many of them had been before a preemption."""
        again = max(0, min(num_tokens, self._num_once_computed - self.num_computed_tokens))
        self.num_computed_tokens += num_tokens
        self.timeline.recomputed(again)
        return again

    def fork(self) -> list[RequestState]:
        """The siblings to come, with the whole prompt computed; none the second time.

        Their blocks are the caller's to share, and their first tokens to append.
        """
        first, count = self.sibling + 1, self.num_unforked
        self.num_unforked = 0
        return [self._sibling(first + i, self.arrival_order + 1 + i) for i in range(count)]

    def _sibling(self, sibling: int, arrival_order: int) -> RequestState:
        request = replace(self.request, sibling=sibling, n=1)
        state = RequestState(
            request,
            self._config,
            arrival_order=arrival_order,
            now=self.timeline.arrival_s,
            eos_token_ids=self._eos_token_ids,
        )
        state.timeline = self.timeline.fork()
        state.num_computed_tokens = self.num_computed_tokens
        state.num_cached_tokens = 0  # the prompt is looked up once
        state._num_served_tokens = self.num_prompt_tokens
        state.chain = self.chain.fork(state._token_ids)
        state._has_told_cached_tokens = True  # the leader does
        return state

    def preempt(self, now: float) -> None:
        """Back to nothing computed, to make room; its blocks are already released."""
        self._num_once_computed = max(self._num_once_computed, self.num_computed_tokens)
        self.timeline.preempted(now)
        self.restart()

    def restart(self) -> None:
        """Back to nothing computed; its blocks are already released."""
        self.status = "waiting"
        self.num_computed_tokens = 0

    def scheduled(self, num_scheduled_tokens: int) -> ScheduledRequest:
        """The next tokens to compute. Sampled when they reach the end of what is known."""
        sampling = self.request.sampling
        end = self.num_computed_tokens + num_scheduled_tokens
        is_sampled = end == self.num_tokens
        must_go_on = self.num_output_tokens < sampling.min_tokens
        return ScheduledRequest(
            request_id=self.request_id,
            token_ids=tuple(self._token_ids[self.num_computed_tokens : end]),
            num_computed_tokens=self.num_computed_tokens,
            block_table=tuple(self.block_table),
            output_index=self.num_output_tokens if is_sampled else None,
            sampling=sampling,
            sibling=self.sibling,
            n=self.num_seats if is_sampled else 1,
            history=tuple(self._token_ids) if is_sampled and sampling.has_penalties else (),
            masked_token_ids=self._end_token_ids if is_sampled and must_go_on else (),
        )

    def token_output(
        self, logprobs: TokenLogprobs | None, finish_reason: FinishReason | None, now: float
    ) -> RequestOutput:
        """Tells the newest token."""
        told = None if logprobs is None else (logprobs,)
        return self._output((self._token_ids[-1],), finish_reason, now, logprobs=told)

    def final_outputs(
        self, finish_reason: FinishReason, now: float, error_code: str | None = None
    ) -> list[RequestOutput]:
        """Tells an end that came without a token, its own and of each sibling to come."""
        own = self._output((), finish_reason, now, error_code=error_code)
        others = range(self.sibling + 1, self.sibling + self.num_seats)
        return [
            own,
            *(replace(own, sibling=sibling, num_cached_tokens=None, lookup=None) for sibling in others),
        ]

    def _output(
        self,
        token_ids: tuple[int, ...],
        finish_reason: FinishReason | None,
        now: float,
        *,
        logprobs: tuple[TokenLogprobs, ...] | None = None,
        error_code: str | None = None,
    ) -> RequestOutput:
        is_first = not self._has_told_cached_tokens
        self._has_told_cached_tokens = True
        return RequestOutput(
            request_id=self.request_id,
            attempt=self.request.attempt,
            sibling=self.sibling,
            first_output_index=self.num_output_tokens - len(token_ids),
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=finish_reason,
            error_code=error_code,
            num_cached_tokens=self.num_cached_tokens or 0 if is_first else None,
            timing=None if finish_reason is None else self.timeline.finished(now),
            lookup=self.prefix_lookup if is_first else None,
        )
