"""Greedy tokens of a model, with how far before the second best each was: to hold another build to them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from random import Random

import torch

from engine.block_hash import hash_blocks
from engine.config import BackendName, EngineConfig
from engine.core import EngineCore
from engine.loading.source import ModelError, resolve_model
from engine.policy import FirstComeFirstServed
from engine.refusal import RequestRefused
from engine.request import Request, RequestOutput, SamplingParams
from engine.scheduler import Scheduler
from engine.torch_executor import TorchExecutor

NUM_PROMPTS = 8
MAX_PROMPT_TOKENS = 80
OUTPUT_TOKENS = 32
_NUM_BLOCKS = 200
_MAX_MODEL_LEN = 256
_ROOT = b"greedy record"

Answer = tuple[Sequence[int], Sequence[int], Sequence[float]]
"""Token ids of the prompt and of the output, and a margin (natural logarithm) for each of the latter."""


def greedy_record(
    model: str,
    prompts: Sequence[Sequence[int]] | None = None,
    backend: BackendName = "auto",
    output_tokens: int = OUTPUT_TOKENS,
) -> list[Answer]:
    """Runs all prompts together in float32, on a GPU if there is one and the backend is not the CPU's: with
    the kernels that are chosen there, and with captured decodes, as in service.

    Without `prompts` they are drawn, from a fixed seed. Raises ValueError for a model
    that is not there or cannot be read, and for a prompt that it cannot take.
    """
    try:
        source = resolve_model(model)
    except ModelError as error:
        raise ValueError(str(error)) from None
    asked = [tuple(prompt) for prompt in prompts or _drawn(source.config.vocab_size)]
    device = "cuda" if torch.cuda.is_available() and backend != "cpu" else "cpu"
    executor = TorchExecutor(
        source, device=device, dtype="float32", max_model_len=_MAX_MODEL_LEN, backend=backend
    )
    executor.allocate_kv(_NUM_BLOCKS)
    config = EngineConfig(num_blocks=_NUM_BLOCKS, max_model_len=_MAX_MODEL_LEN)
    executor.capture_decodes(config)
    scheduler = Scheduler(config, FirstComeFirstServed(), eos_token_ids=source.config.eos_token_ids)
    core = EngineCore(scheduler, executor, time.monotonic)
    for number, prompt in enumerate(asked):
        try:
            core.add(_request(str(number), prompt, config.block_size, output_tokens))
        except RequestRefused as refused:
            raise ValueError(f"prompt {number}: {refused}") from None
    outputs: dict[str, list[RequestOutput]] = {str(number): [] for number in range(len(asked))}
    while core.has_work():
        for output in core.step():
            outputs[output.request_id].append(output)
    return [_answer(prompt, outputs[str(number)]) for number, prompt in enumerate(asked)]


def _drawn(vocab_size: int) -> Iterator[tuple[int, ...]]:
    random = Random(0)
    for _ in range(NUM_PROMPTS):
        yield tuple(random.randrange(vocab_size) for _ in range(random.randint(1, MAX_PROMPT_TOKENS)))


def _request(request_id: str, prompt: tuple[int, ...], block_size: int, output_tokens: int) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True, num_logprobs=2),
        hash_root=_ROOT,
        block_hashes=hash_blocks(_ROOT, prompt, block_size),
    )


def _answer(prompt: tuple[int, ...], outputs: Sequence[RequestOutput]) -> Answer:
    told = [logprobs for output in outputs for logprobs in output.logprobs or ()]
    token_ids = [token_id for output in outputs for token_id in output.token_ids]
    return prompt, token_ids, [one.top[0][1] - one.top[1][1] for one in told]
