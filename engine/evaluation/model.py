"""A model that is evaluated: loaded as a replica loads it, asked for logits and for text."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from engine.block_hash import hash_blocks
from engine.config import BLOCK_SIZE, EngineConfig
from engine.core import EngineCore
from engine.loading.source import ModelError, ModelSource
from engine.policy import FirstComeFirstServed
from engine.quantization import Quantization
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from engine.torch_executor import TorchExecutor

_MAX_NUM_SEQS = 32
_ROOT = b"evaluation"

Draw = tuple[float, int]
"""Temperature and seed."""


class EvaluatedModel:
    """Sequences of at most `max_tokens`. Raises ModelError from the constructor."""

    def __init__(
        self, source: ModelSource, quantization: Quantization, *, dtype: str, device: str, max_tokens: int
    ) -> None:
        self._source = source
        blocks_each = -(-max_tokens // BLOCK_SIZE) + 1
        self._config = EngineConfig(
            num_blocks=_MAX_NUM_SEQS * blocks_each + 2,
            max_model_len=max_tokens,
            max_num_seqs=_MAX_NUM_SEQS,
            enable_prefix_caching=False,  # logits are computed in the same blocks
        )
        self._executor = TorchExecutor(
            source,
            device=device,
            dtype=dtype,
            max_model_len=max_tokens,
            quantization=quantization,
            max_num_seqs=_MAX_NUM_SEQS,
        )
        self._executor.allocate_kv(self._config.num_blocks)

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """[T, vocab]"""
        return self._executor.logits(token_ids)

    def generate(
        self, prompts: Sequence[tuple[int, ...]], draws: Sequence[Draw], num_tokens: int
    ) -> dict[Draw, list[tuple[int, ...]]]:
        """That many tokens behind each prompt, end tokens or not, once for each draw; all together.

        Raises ModelError for a request that fails: its logits were no finite numbers.
        """
        scheduler = Scheduler(
            self._config, FirstComeFirstServed(), eos_token_ids=self._source.config.eos_token_ids
        )
        core = EngineCore(scheduler, self._executor, time.monotonic)
        asked = [(draw, prompt) for draw in draws for prompt in prompts]
        for number, (draw, prompt) in enumerate(asked):
            core.add(_request(str(number), prompt, draw, num_tokens))
        outputs: dict[str, list[int]] = {str(number): [] for number in range(len(asked))}
        while core.has_work():
            for output in core.step():
                outputs[output.request_id] += output.token_ids
        if any(len(token_ids) < num_tokens for token_ids in outputs.values()):
            raise ModelError("the model's logits are no finite numbers", "give one with sound weights")
        answers = iter(outputs.values())
        return {draw: [tuple(next(answers)) for _ in prompts] for draw in draws}


def _request(request_id: str, prompt: tuple[int, ...], draw: Draw, num_tokens: int) -> Request:
    temperature, seed = draw
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=num_tokens, temperature=temperature, seed=seed, ignore_eos=True),
        hash_root=_ROOT,
        block_hashes=hash_blocks(_ROOT, prompt, BLOCK_SIZE),
    )
