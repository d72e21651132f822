"""Whether a freshly loaded engine answers its golden prompts. Holds no torch; told the engine to ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cluster.golden import GoldenPrompt
from engine.block_hash import hash_blocks
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading.errors import ModelError
from engine.request import Request, SamplingParams, TokenLogprobs
from engine.scheduler import RequestRefused
from engine.tokenizer import Tokenizer

NUM_TOKENS = 4
"""Of an answer of which nothing is expected."""
SPARE_TOKENS = 4
"""A text may come in more tokens than those that the tokenizer would make of it."""
NEAR_TIE = {"float32": 1e-3, "bfloat16": 0.1}
"""By the weights' dtype: two best logits closer than this may change places between two machines. The
engine's own are looked at, for those of the one that gave the expectation are not known."""
_ROOT = b"golden"
REMEDY = "see whether the model's files and the golden prompts belong together"


class _Answer(NamedTuple):
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


class GoldenCheck:
    """Asks one prompt after the other, greedily, each alone in the batch.

    `core` serves nothing else, and its scheduler is thrown away with it: no block, count or cached prefix
    remains. `near_tie` is in logits; at 0 every token must be as expected.
    """

    def __init__(
        self, core: EngineCore, tokenizer: Tokenizer, config: EngineConfig, *, near_tie: float = 0.0
    ) -> None:
        self._core = core
        self._tokenizer = tokenizer
        self._config = config
        self._near_tie = near_tie

    def check(self, prompts: Sequence[GoldenPrompt]) -> int:
        """Returns how many answers departed from the expected one at a near tie, which is allowed.

        Raises ModelError for a wrong, failed or empty answer; it quotes neither prompt nor answer.
        """
        return sum(self._check_one(f"golden prompt {n}", prompt) for n, prompt in enumerate(prompts, start=1))

    def _check_one(self, name: str, prompt: GoldenPrompt) -> bool:
        answer = self._ask(name, prompt)
        if set(answer.token_ids) <= {*self._tokenizer.eos_token_ids}:
            raise ModelError(f"{name} got an empty answer", REMEDY)
        index = prompt.departure(answer.token_ids, self._tokenizer.token_bytes)
        if index is None:
            return False
        if not self._is_near_tie(prompt, answer, index):
            raise ModelError(f"{name} got another answer than expected, from token {index + 1} on", REMEDY)
        return True

    def _ask(self, name: str, prompt: GoldenPrompt) -> _Answer:
        request = self._request(name, prompt)
        try:
            self._core.add(request)
        except RequestRefused as refusal:
            raise ModelError(f"{name} cannot be asked: {refusal.message}", REMEDY) from None
        outputs = []
        while self._core.has_work():
            outputs += self._core.step()
        if outputs[-1].finish_reason == "error":
            raise ModelError(f"{name} ended with {outputs[-1].error_code}", "see the replica's log")
        return _Answer(
            tuple(token_id for output in outputs for token_id in output.token_ids),
            tuple(told for output in outputs for told in output.logprobs or ()),
        )

    def _request(self, name: str, prompt: GoldenPrompt) -> Request:
        token_ids = tuple(prompt.prompt_token_ids or self._tokenizer.encode(prompt.prompt or ""))
        if not prompt.is_expecting:
            token_ids = token_ids[: self._config.max_model_len - 1]
        if (largest := max(token_ids)) >= (vocab_size := self._tokenizer.vocab_size):
            raise ModelError(f"{name} holds token {largest}; the vocabulary has {vocab_size}", REMEDY)
        return Request(
            request_id=name,
            prompt_token_ids=token_ids,
            sampling=SamplingParams(
                max_tokens=self._num_tokens(prompt),
                temperature=0.0,
                ignore_eos=prompt.text is None,
                num_logprobs=2,
            ),
            hash_root=_ROOT,
            block_hashes=hash_blocks(_ROOT, token_ids, self._config.block_size),
        )

    def _num_tokens(self, prompt: GoldenPrompt) -> int:
        if prompt.token_ids is not None:
            return len(prompt.token_ids)
        if prompt.text is not None:
            return len(self._tokenizer.encode_piece(prompt.text)) + SPARE_TOKENS
        return NUM_TOKENS

    def _is_near_tie(self, prompt: GoldenPrompt, answer: _Answer, index: int) -> bool:
        """Whether the expected token was nearly taken. Of a text only its distance is known."""
        top = answer.logprobs[min(index, len(answer.logprobs) - 1)].top
        if len(top) < 2 or top[0][1] - top[1][1] >= self._near_tie:
            return False
        return prompt.token_ids is None or prompt.token_ids[index] == top[1][0]
