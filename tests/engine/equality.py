"""Requests of every kind, and what became of each: for showing that company changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

from engine.block_hash import hash_blocks
from engine.core import EngineCore
from engine.request import FinishReason, Request, RequestOutput, SamplingParams, TokenLogprobs
from tests.builders import ROOT, tokens_of

BLOCK_SIZE = 16
NUM_TRUNKS = 4
MAX_STEPS = 50_000


def mixed_requests(count: int, *, seed: int, vocab_size: int, max_tokens: int = 12) -> list[Request]:
    """Prompts of 1 to 120 tokens, half of them behind a shared trunk; every way of sampling in turn."""
    random = Random(seed)
    trunks = [_tokens(random, vocab_size, 16 * (i + 1) - 3 * i) for i in range(NUM_TRUNKS)]
    requests = []
    for i in range(count):
        trunk = random.choice(trunks) if random.random() < 0.5 else ()
        prompt = trunk + _tokens(random, vocab_size, round(2 ** random.uniform(0, 6)))
        sampling = _sampling(i, random, vocab_size, random.randint(1, max_tokens))
        requests.append(
            Request(
                request_id=f"r{i}",
                prompt_token_ids=prompt,
                sampling=sampling,
                hash_root=ROOT,
                block_hashes=hash_blocks(ROOT, prompt, BLOCK_SIZE),
                n=random.randint(2, 4) if i % 7 == 1 else 1,
            )
        )
    return requests


def one_by_one(requests: Sequence[Request]) -> list[Request]:
    """The same answers without any shared work: each sibling a request of its own."""
    return [
        msgspec.structs.replace(request, sibling=sibling, n=1)
        for request in requests
        for sibling in range(request.n)
    ]


def _tokens(random: Random, vocab_size: int, count: int) -> tuple[int, ...]:
    return tuple(random.randrange(3, vocab_size) for _ in range(count))


def _sampling(kind: int, random: Random, vocab_size: int, max_tokens: int) -> SamplingParams:
    seed = random.getrandbits(64)
    stops = _tokens(random, vocab_size, 24)
    kinds = (
        SamplingParams(max_tokens=max_tokens, temperature=0.0),
        SamplingParams(max_tokens=max_tokens, temperature=0.9, top_p=0.9, seed=seed, stop_token_ids=stops),
        SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            repetition_penalty=1.3,
            presence_penalty=0.4,
            frequency_penalty=0.2,
            ignore_eos=True,
        ),
        SamplingParams(max_tokens=max_tokens, temperature=0.0, num_logprobs=3, ignore_eos=True),
        SamplingParams(
            max_tokens=max_tokens,
            temperature=1.5,
            top_k=20,
            min_p=0.02,
            seed=seed,
            num_logprobs=0,
            logit_bias=((stops[0], 4.0), (2, 3.0)),
            min_tokens=min(3, max_tokens),
            frequency_penalty=0.3,
        ),
    )
    return kinds[kind % len(kinds)]


@dataclass
class Outcome:
    """What a client sees of a request, cached tokens and times aside."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    error_code: str | None = None


Answer = tuple[str, int]
"""Request id and sibling."""


def outcomes(
    core: EngineCore, requests: Sequence[Request], *, arrivals: Random | None = None
) -> dict[Answer, Outcome]:
    """Runs all to their ends; with `arrivals` a few more arrive in each step, else all at once."""
    outputs: dict[Answer, list[RequestOutput]] = {
        (request.request_id, request.sibling + i): [] for request in requests for i in range(request.n)
    }
    waiting = list(requests)
    for _ in range(MAX_STEPS):
        num_arriving = len(waiting) if arrivals is None else arrivals.randint(0, 3)
        arriving, waiting = waiting[:num_arriving], waiting[num_arriving:]
        for request in arriving:
            core.add(request)
        for output in core.step():
            outputs[output.request_id, output.sibling].append(output)
        if not waiting and not core.has_work():
            core.check_integrity()
            return {answer: _outcome(got) for answer, got in outputs.items()}
    raise AssertionError(f"still work after {MAX_STEPS} steps")


def _outcome(outputs: list[RequestOutput]) -> Outcome:
    told = [logprobs for output in outputs if output.logprobs is not None for logprobs in output.logprobs]
    return Outcome(tokens_of(outputs), told or None, outputs[-1].finish_reason, outputs[-1].error_code)


def differing(expected: dict[Answer, Outcome], got: dict[Answer, Outcome]) -> list[Answer]:
    """The answers that came out otherwise; the same must be in both."""
    assert expected.keys() == got.keys()
    return [answer for answer in expected if expected[answer] != got[answer]]
