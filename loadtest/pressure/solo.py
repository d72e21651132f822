"""The same request alone: the answer that pressure must not have changed."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from engine.core import EngineCore
from loadtest.pressure.answer import Reader, SiblingAnswer
from loadtest.pressure.load import Case
from loadtest.pressure.verdict import NUM_TOP


def run_solo(
    core: EngineCore,
    case: Case,
    sibling: int,
    token_bytes: Callable[[int], bytes],
    *,
    max_tokens: int | None,
    tells_ties: bool,
) -> SiblingAnswer:
    """One sibling of `case` on an idle engine; cut after `max_tokens`, if it ended there.

    `tells_ties`: with the logprobs that a near tie is judged by.
    """
    sampling = case.request.sampling
    if tells_ties:
        sampling = replace(sampling, num_logprobs=max(NUM_TOP, sampling.num_logprobs or 0))
    request_id = f"solo-{case.request.request_id}-{sibling}"
    core.add(replace(case.request, request_id=request_id, sibling=sibling, n=1, sampling=sampling))
    reader = Reader(token_bytes, case.stop)
    while not reader.is_over:
        for output in core.step():
            reader.take(output)
        if reader.num_tokens == max_tokens or reader.is_over:
            for output in core.abort(request_id):
                reader.take(output)
    return reader.answer()
