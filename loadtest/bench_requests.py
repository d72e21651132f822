"""Requests for benches: random prompts of exact lengths, greedy, with exact numbers of output tokens."""

from __future__ import annotations

from random import Random

from engine.block_hash import BlockHash, hash_blocks
from engine.request import Request, SamplingParams


class RequestMaker:
    """What it makes follows from the seed and the order of calls. `hash_root` is the model's."""

    def __init__(self, vocab_size: int, hash_root: BlockHash, block_size: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._hash_root = hash_root
        self._block_size = block_size
        self._rng = Random(seed)

    def tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(self._vocab_size) for _ in range(count))

    def request(
        self, request_id: str, num_tokens: int, output_tokens: int, prefix: tuple[int, ...] = ()
    ) -> Request:
        """A prompt of `num_tokens` in all that begins with `prefix`."""
        prompt = (*prefix, *self.tokens(num_tokens - len(prefix)))
        return Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True),
            hash_root=self._hash_root,
            block_hashes=hash_blocks(self._hash_root, prompt, self._block_size),
        )
