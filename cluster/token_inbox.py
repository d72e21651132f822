"""What a replica made for one submission, as its gateway reads it: in order, once each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from cluster.link import LinkDown
from engine.request import Request, RequestOutput


class TokenInbox:
    """The outputs of one submission that nobody has read yet, and which siblings are still live.

    A sibling is live until its last output has come or its reader has ended it. Each sibling's
    outputs are in order and there once each; those of several come as the replica made them.
    `wake` is set by `announce` and by the end; several inboxes may share one.
    """

    def __init__(self, request: Request, replica_id: str, wake: asyncio.Event) -> None:
        self.request_id = request.request_id
        self.replica_id = replica_id
        siblings = range(request.sibling, request.sibling + request.n)
        self._next_index = dict.fromkeys(siblings, len(request.output_token_ids))
        """Of each live sibling."""
        self._outputs: deque[RequestOutput] = deque()
        self._failure: LinkDown | None = None
        self._wake = wake

    @property
    def live_siblings(self) -> list[int]:
        return sorted(self._next_index)

    def is_live(self, sibling: int | None = None) -> bool:
        """Whether more of `sibling` may come; without one, whether more of any."""
        return bool(self._next_index) if sibling is None else sibling in self._next_index

    def put(self, output: RequestOutput) -> None:
        """Takes what came for a live sibling. Drops indices that are already here.

        Raises `LinkDown` on a gap.
        """
        next_index = self._next_index[output.sibling]
        if output.first_output_index > next_index:
            raise LinkDown(f"tokens {next_index} to {output.first_output_index - 1} were lost")
        if output.token_ids:
            output = _from(output, next_index)
        self._next_index[output.sibling] = next_index + len(output.token_ids)
        if output.finish_reason is not None:
            del self._next_index[output.sibling]
        self._outputs.append(output)

    def announce(self) -> None:
        """Wakes the reader: there is something to take."""
        self._wake.set()

    def fail(self, reason: LinkDown) -> None:
        """The link is dead: `take` raises `reason` once what came before is read."""
        self._failure = reason
        self._wake.set()

    def end(self, sibling: int | None = None) -> int:
        """Nothing more of `sibling`, or of any: drops what was not read; the number of its tokens."""
        kept: deque[RequestOutput] = deque()
        num_tokens = 0
        for output in self._outputs:
            if sibling in (None, output.sibling):
                num_tokens += len(output.token_ids)
            else:
                kept.append(output)
        self._outputs = kept
        if sibling is None:
            self._next_index.clear()
        else:
            self._next_index.pop(sibling, None)
        return num_tokens

    def take(self) -> RequestOutput | None:
        """All that has come of one sibling, as one output; None if nothing has.

        A reader that is behind catches up at once; a failure comes alone, after what came before it.
        Raises `LinkDown` if the link died before more came.
        """
        if not self._outputs:
            if self._failure is not None:
                raise self._failure
            return None
        if len(self._outputs) == 1:
            return self._outputs.popleft()
        sibling = self._outputs[0].sibling
        taken: list[RequestOutput] = []
        kept: deque[RequestOutput] = deque()
        for output in self._outputs:
            is_own = output.sibling == sibling and not (taken and output.is_failure)
            (taken if is_own else kept).append(output)
        self._outputs = kept
        return _joined(taken)


def _from(output: RequestOutput, index: int) -> RequestOutput:
    """The part of `output` from output token number `index` on."""
    seen = index - output.first_output_index
    if not seen:
        return output
    return msgspec.structs.replace(
        output,
        first_output_index=index,
        token_ids=output.token_ids[seen:],
        logprobs=None if output.logprobs is None else output.logprobs[seen:],
    )


def _joined(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """Consecutive outputs of one sibling as one. What is told once is told first, the end last."""
    first, last = outputs[0], outputs[-1]
    if first is last:
        return first
    logprobs = [one for output in outputs for one in output.logprobs or ()]
    return msgspec.structs.replace(
        last,
        first_output_index=first.first_output_index,
        token_ids=tuple(token_id for output in outputs for token_id in output.token_ids),
        logprobs=tuple(logprobs) if logprobs else None,
        num_cached_tokens=first.num_cached_tokens,
        lookup=first.lookup,
    )
