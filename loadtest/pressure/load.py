"""Random requests that press on an engine from all sides, and when their clients leave. Seeded, pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import log
from random import Random
from typing import Any, Literal

from msgspec.structs import replace

from engine.block_hash import hash_blocks
from engine.request import Request, SamplingParams

State = Literal["waiting", "prefill", "preempted", "decoding"]

_STOPS = ("\n", ". ", " the", "ing", "e", "ab", "cad")
_ROOTS = tuple(blake2b(name, digest_size=16).digest() for name in (b"tenant 0", b"tenant 1"))
_NUM_PREFIXES = 4
_SEED_BITS = 64


@dataclass(frozen=True)
class PressureLoad:
    """`max_prompt` and `max_output` are tokens; lengths are log-uniform from 1 up to them."""

    num_requests: int
    max_prompt: int
    max_output: int
    max_n: int = 4
    aborted_share: float = 0.3
    greedy_share: float = 0.6
    seed: int = 0


@dataclass(frozen=True)
class Departure:
    """A client leaves when its request is found in `state`, is preempted, or has `num_tokens`.

    `is_in_flight`: while a step computes for it, else between steps. `sibling`: only this answer is
    given up, the others go on.
    """

    state: State
    num_tokens: int
    is_in_flight: bool
    sibling: int | None = None


@dataclass(frozen=True)
class Case:
    """One request and what its client does with it."""

    request: Request
    stop: tuple[str, ...]
    departure: Departure | None

    @property
    def demand_tokens(self) -> int:
        """Slots that it takes at its longest."""
        return len(self.request.prompt_token_ids) + self.request.n * self.request.sampling.max_tokens


def make_cases(load: PressureLoad, *, vocab_size: int, block_size: int) -> list[Case]:
    return _Maker(load, vocab_size, block_size).cases()


class _Maker:
    def __init__(self, load: PressureLoad, vocab_size: int, block_size: int) -> None:
        self._load = load
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._rng = Random(load.seed)
        self._prefixes = [self._tokens(load.max_prompt // 2**power) for power in range(1, _NUM_PREFIXES + 1)]

    def cases(self) -> list[Case]:
        return [self._case(number) for number in range(self._load.num_requests)]

    def _case(self, number: int) -> Case:
        request = self._request(number)
        stop = tuple(self._rng.sample(_STOPS, self._rng.randint(1, 3))) if self._is(0.3) else ()
        return Case(request, stop, self._departure(request) if self._is(self._load.aborted_share) else None)

    def _request(self, number: int) -> Request:
        root, prompt = self._rng.choice(_ROOTS), self._prompt()
        return Request(
            request_id=f"pressure-{number}",
            prompt_token_ids=prompt,
            sampling=self._sampling(),
            hash_root=root,
            block_hashes=hash_blocks(root, prompt, self._block_size),
            n=self._rng.randint(2, self._load.max_n) if self._load.max_n > 1 and self._is(0.25) else 1,
            priority=int(self._is(0.25)),
        )

    def _prompt(self) -> tuple[int, ...]:
        prefix = self._rng.choice(self._prefixes) if self._is(0.5) else ()
        return (prefix + self._tokens(self._log_uniform(self._load.max_prompt)))[: self._load.max_prompt]

    def _sampling(self) -> SamplingParams:
        rng, is_greedy = self._rng, self._is(self._load.greedy_share)
        max_tokens = self._log_uniform(self._load.max_output)
        plain = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            seed=rng.getrandbits(_SEED_BITS),
            ignore_eos=self._is(0.5),
            min_tokens=rng.randint(0, max_tokens) if self._is(0.2) else 0,
            stop_token_ids=self._tokens(4) if self._is(0.2) else (),
            num_logprobs=rng.randint(0, 5) if self._is(0.2) else None,
        )
        return plain if is_greedy else replace(plain, **self._randomness())

    def _randomness(self) -> dict[str, Any]:
        """A quarter of these are greedy all the same, through penalties and biases."""
        rng = self._rng
        return {
            "temperature": 0.0 if self._is(0.25) else rng.uniform(0.2, 1.5),
            "top_k": rng.choice([0, 0, 1, 20, 1000]),
            "top_p": rng.choice([1.0, 1.0, 0.5, 0.9]),
            "min_p": rng.choice([0.0, 0.0, 0.05]),
            "repetition_penalty": rng.choice([1.0, 1.2, 0.9]),
            "presence_penalty": rng.choice([0.0, 0.5, -0.5]),
            "frequency_penalty": rng.choice([0.1, 0.5, -0.2]),
            "logit_bias": tuple((token_id, rng.uniform(-5, 5)) for token_id in sorted({*self._tokens(3)})),
        }

    def _departure(self, request: Request) -> Departure:
        max_tokens = request.sampling.max_tokens
        num_tokens = self._rng.randint(1, max_tokens)
        if request.n > 1 and self._is(0.5):
            sibling = self._rng.randrange(request.n)
            return Departure("decoding", num_tokens, self._is(0.5), sibling)
        if max_tokens > 1 and self._is(0.2):  # in flight with its last token
            return Departure("decoding", max_tokens - 1, is_in_flight=True)
        state: State = self._rng.choice(("waiting", "prefill", "preempted", "decoding"))
        return Departure(state, num_tokens, is_in_flight=state == "prefill" and self._is(0.5))

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(self._vocab_size) for _ in range(count))

    def _log_uniform(self, most: int) -> int:
        """From 1 to `most`: each doubling is as likely as the next."""
        return min(most, int(2 ** self._rng.uniform(0, log(most + 1, 2))))

    def _is(self, share: float) -> bool:
        return self._rng.random() < share
