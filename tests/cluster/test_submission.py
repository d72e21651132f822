"""What is submitted of a request: on whose account, and with how much to prefill."""

from __future__ import annotations

from typing import Any

from cluster.generation import PRIORITY
from cluster.prompt_chains import Chain
from cluster.submission import Part, submission
from engine.block_chain import Branch
from engine.block_hash import BlockHash
from engine.request import Flow, Request, SamplingParams
from tenants.queued import Share

PROMPT = tuple(range(40))
SAMPLING = SamplingParams(max_tokens=8)
CHAIN = Chain(BlockHash(b"root"), (BlockHash(b"first"), BlockHash(b"second")))


PAID = Share("acme", 4, "interactive")
WHOLE = Part()


def submitted(share: Share = PAID, chain: Chain = CHAIN, part: Part = WHOLE, **fields: Any) -> Request:
    """16 tokens of it are cached where it goes."""
    return submission("r-0", share, PROMPT, chain, SAMPLING, 16, part, **fields)


def test_a_request_is_on_its_tenant_s_account_with_what_is_not_cached_to_prefill() -> None:
    assert submitted() == Request(
        request_id="r-0",
        prompt_token_ids=PROMPT,
        sampling=SAMPLING,
        hash_root=b"root",
        block_hashes=(b"first", b"second"),
        priority=PRIORITY["interactive"],
        flow=Flow("acme", 4),
        num_uncached_tokens=40 - 16,
    )
    batch = submitted(Share("other", 1, "batch"))
    assert (batch.priority, batch.flow) == (PRIORITY["batch"], Flow("other", 1))


def test_what_goes_on_has_the_tokens_that_came_to_prefill_too() -> None:
    resumed = submitted(part=Part(2, 1, (7, 8, 9)), attempt=1, is_suspect=True)
    assert (resumed.sibling, resumed.n, resumed.output_token_ids) == (2, 1, (7, 8, 9))
    assert (resumed.num_uncached_tokens, resumed.attempt, resumed.is_suspect) == (40 + 3 - 16, 1, True)


def test_a_public_prefix_branches() -> None:
    branch = Branch(1, BlockHash(b"own"))
    assert submitted(chain=CHAIN._replace(branch=branch)).branch == branch
