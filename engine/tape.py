"""A scripted model: it plays stored tokens, so that everything around a model runs without one.

It keeps a KV store of token ids and reads each sequence back through its block table, so a wrong
table, a block shared too early or returned too soon plays wrong tokens: a tape checks paging.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import replace

from engine.request import TokenLogprobs
from engine.step import SampledToken, ScheduledRequest, StepPlan, StepResult

PREFIX = "tape:"
ANY_PROMPT = "*"
END_OF_TURN_ID = 258
"""`<|im_end|>` of the byte vocabulary: ids 0–255 are bytes, 256 `<|endoftext|>`, 257 `<|im_start|>`."""

_BUILT_IN = {ANY_PROMPT: tuple(b"A headrace brings water to the turbines at a steady head.")}
_PARAMETERS = ("step_ms", "vocab", "max_model_len")
_UNWRITTEN = -1

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class TapeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a tape file."""

    prompt_hash: Annotated[str, msgspec.Meta(pattern=r"^(\*|[0-9a-f]{32})$")]
    """`prompt_hash()` of the prompt that this answers, or `*` for every prompt without its own row."""
    token_ids: tuple[TokenId, ...]
    logprobs: tuple[float | TokenLogprobs, ...] | None = None
    """One for each token: its own, or `[its own, [[token id, logprob], …]]` with the likeliest tokens'."""

    def told(self) -> tuple[TokenLogprobs, ...]:
        """Raises ValueError unless there is one for each token."""
        given = self.logprobs or ()
        if self.logprobs is not None and len(given) != len(self.token_ids):
            raise ValueError(f"{len(given)} logprobs for {len(self.token_ids)} token_ids")
        return tuple(
            _alone(token_id, one) if isinstance(one, float) else one
            for token_id, one in zip(self.token_ids, given, strict=False)
        )


@dataclass(frozen=True, slots=True)
class TapeSpec:
    """What `tape:FILE?step_ms=20&vocab=PATH&max_model_len=8192` says, its file read."""

    tapes: Mapping[str, tuple[int, ...]]
    """Prompt hash or `*` → the whole answer. What is not there is an empty answer."""
    step_ms: float = 0.0
    vocab: Path | None = None
    """A vocabulary to speak instead of bytes. Who loads it replaces `eos_token_ids` by its own."""
    max_model_len: int = 8192
    eos_token_ids: tuple[int, ...] = (END_OF_TURN_ID,)
    logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """Those of a tape's tokens, where its row has them; every other token was certain."""

    def next_token(self, sequence: Sequence[int], output_index: int) -> int:
        """Continues prompt + `output_index` output tokens. Past its tape it is the end token, for ever.

        So it is for outputs that the tape did not play: another context, another continuation.
        """
        name, outputs = self._tape_of(sequence, output_index)
        end = self.eos_token_ids[0]
        played = self.tapes.get(name, ()) + (end,) * (output_index + 1)
        return played[output_index] if outputs == played[:output_index] else end

    def next_logprobs(self, sequence: Sequence[int], output_index: int) -> TokenLogprobs:
        """Those of `next_token`."""
        token_id = self.next_token(sequence, output_index)
        name, _ = self._tape_of(sequence, output_index)
        known = self.logprobs.get(name, ())
        is_played = output_index < len(known) and token_id == self.tapes[name][output_index]
        return known[output_index] if is_played else _alone(token_id, 0.0)

    def _tape_of(self, sequence: Sequence[int], output_index: int) -> tuple[str, tuple[int, ...]]:
        """The name of the tape that answers, and the outputs so far."""
        num_prompt_tokens = len(sequence) - output_index
        name = prompt_hash(sequence[:num_prompt_tokens])
        return name if name in self.tapes else ANY_PROMPT, tuple(sequence[num_prompt_tokens:])


def _alone(token_id: int, logprob: float) -> TokenLogprobs:
    """Nothing is known of any other token."""
    return TokenLogprobs(logprob, ((token_id, logprob),))


def prompt_hash(token_ids: Sequence[int]) -> str:
    """Names a prompt in a tape file: blake2b-128 of its ids as little-endian int32, in hex."""
    return blake2b(array("i", token_ids).tobytes(), digest_size=16).hexdigest()


def parse_tape_spec(text: str) -> TapeSpec:
    """Reads a model name that begins with `tape:`, and the file it names; none is a built-in tape.

    Raises ValueError naming the part, or the file's line, that is wrong.
    """
    if not text.startswith(PREFIX):
        raise ValueError(f"a tape begins with {PREFIX!r}, not {text!r}")
    file, _, query = text.removeprefix(PREFIX).partition("?")
    given = _parse_query(query)
    tapes, logprobs = _read_tapes(Path(file)) if file else (_BUILT_IN, {})
    return TapeSpec(
        tapes=tapes,
        logprobs=logprobs,
        step_ms=_parse_step_ms(given.get("step_ms", "0")),
        vocab=Path(given["vocab"]) if "vocab" in given else None,
        max_model_len=_parse_max_model_len(given.get("max_model_len", "8192")),
    )


def _parse_query(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _PARAMETERS:
            raise ValueError(f"tape: unknown parameter {name!r}; there are {', '.join(_PARAMETERS)}")
        if name in given or not value:
            raise ValueError(f"tape: {name} must be given once and with a value")
        given[name] = value
    return given


def _parse_step_ms(text: str) -> float:
    try:
        step_ms = float(text)
    except ValueError:
        step_ms = math.nan
    if not 0 <= step_ms < math.inf:
        raise ValueError(f"tape: step_ms must be a number of milliseconds, at least 0, not {text!r}")
    return step_ms


def _parse_max_model_len(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= 2):
        raise ValueError(f"tape: max_model_len must be a number of tokens, at least 2, not {text!r}")
    return int(text)


def _read_tapes(path: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[TokenLogprobs, ...]]]:
    """Answers, and the logprobs of those rows that have them, by prompt hash."""
    tapes: dict[str, tuple[int, ...]] = {}
    logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
    for number, row in _read_rows(path):
        try:
            if row.prompt_hash in tapes:
                raise ValueError(f"prompt_hash {row.prompt_hash} is there twice")
            tapes[row.prompt_hash] = row.token_ids
            logprobs[row.prompt_hash] = row.told()
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from None
    return tapes, logprobs


def _read_rows(path: Path) -> Iterator[tuple[int, TapeRow]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"tape file {path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line, type=TapeRow)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path} line {number}: {error}") from None


class TapeExecutor:
    """Owns a KV store of token ids, `[num_blocks][block_size]`. A step takes `spec.step_ms`.

    `sleep(seconds)` waits. Raises IndexError or ValueError for a plan that no model could compute.
    """

    def __init__(
        self,
        spec: TapeSpec,
        *,
        num_blocks: int,
        block_size: int,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._spec = spec
        self._block_size = block_size
        self._kv = [[_UNWRITTEN] * block_size for _ in range(num_blocks)]
        self._sleep = sleep

    def submit(self, plan: StepPlan) -> _Playing:
        contents = [list(self._kv[source]) for source, _ in plan.copies]
        for (_, destination), content in zip(plan.copies, contents, strict=True):
            self._kv[destination] = content
        for request in plan.scheduled:
            self._write(request)
        token_ids = tuple(self._sample(request) for request in plan.scheduled)
        logprobs = {
            row: told for row, request in enumerate(plan.scheduled) if (told := self._logprobs(request))
        }
        siblings = {row: self._siblings(one) for row, one in enumerate(plan.scheduled) if one.n > 1}
        result = StepResult(plan.step, token_ids, logprobs, siblings=siblings)
        return _Playing(result, self._spec.step_ms / 1000, self._sleep)

    def reset(self) -> None:
        for slots in self._kv:
            slots[:] = [_UNWRITTEN] * self._block_size

    def _write(self, request: ScheduledRequest) -> None:
        for position, token_id in enumerate(request.token_ids, start=request.num_computed_tokens):
            block = request.block_table[position // self._block_size]
            self._kv[block][position % self._block_size] = token_id

    def _sample(self, request: ScheduledRequest) -> int | None:
        if request.output_index is None:
            return None
        return self._spec.next_token(self._read(request), request.output_index)

    def _siblings(self, request: ScheduledRequest) -> tuple[SampledToken, ...]:
        others = (replace(request, sibling=request.sibling + i, n=1) for i in range(1, request.n))
        return tuple(
            SampledToken(token_id, self._logprobs(one))
            for one in others
            if (token_id := self._sample(one)) is not None
        )

    def _logprobs(self, request: ScheduledRequest) -> TokenLogprobs | None:
        count = request.sampling.num_logprobs
        if request.output_index is None or count is None:
            return None
        told = self._spec.next_logprobs(self._read(request), request.output_index)
        return TokenLogprobs(told.logprob, told.top[:count])

    def _read(self, request: ScheduledRequest) -> list[int]:
        """The whole sequence, as attention would see it."""
        num_tokens = request.num_computed_tokens + request.num_scheduled_tokens
        slots = [slot for block in request.block_table for slot in self._kv[block]][:num_tokens]
        if _UNWRITTEN in slots:
            raise ValueError(f"request {request.request_id} reads a KV slot that was never written")
        return slots


class _Playing:
    """A step whose tokens are known and whose time is still to pass."""

    def __init__(self, result: StepResult, step_s: float, sleep: Callable[[float], object]) -> None:
        self._result = result
        self._step_s = step_s
        self._sleep = sleep

    def result(self) -> StepResult:
        if self._step_s > 0:
            self._sleep(self._step_s)
        return self._result
