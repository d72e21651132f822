"""What a gateway submits to a replica of a request; in production and in virtual time."""

from __future__ import annotations

from typing import NamedTuple

from cluster.generation import PRIORITY
from cluster.prompt_chains import Chain
from engine.request import Flow, Request, SamplingParams
from tenants.queued import Share


class Part(NamedTuple):
    """Siblings `sibling` … `sibling` + `n` − 1 of a request, which go on behind `output_token_ids`."""

    sibling: int = 0
    n: int = 1
    output_token_ids: tuple[int, ...] = ()


def submission(
    request_id: str,
    share: Share,
    prompt_token_ids: tuple[int, ...],
    chain: Chain,
    sampling: SamplingParams,
    num_cached_tokens: int,
    part: Part,
    *,
    attempt: int = 0,
    is_suspect: bool = False,
) -> Request:
    """`num_cached_tokens`: of the prompt, as is thought of the replica that it goes to."""
    num_tokens = len(prompt_token_ids) + len(part.output_token_ids)
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        sampling=sampling,
        hash_root=chain.root,
        block_hashes=chain.block_hashes,
        branch=chain.branch,
        output_token_ids=part.output_token_ids,
        attempt=attempt,
        sibling=part.sibling,
        n=part.n,
        priority=PRIORITY[share.service_class],
        flow=Flow(share.tenant_id, share.weight),
        num_uncached_tokens=num_tokens - num_cached_tokens,
        is_suspect=is_suspect,
    )
