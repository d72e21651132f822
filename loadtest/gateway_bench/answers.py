"""What the bench asks for, and whether an answer is whole and says what the tape says. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

from loadtest.answer import AnswerReader
from loadtest.event_stream import EventStream
from loadtest.gateway_bench.received import Received
from loadtest.record import OK

_SENTENCE = "A headrace brings water to the turbines at a steady head. "
PROMPT = [100] * 16
"""Token ids. Short: prefill is not what is measured."""
MAX_OUTPUT_TOKENS = 4096
TEXT = (_SENTENCE * (MAX_OUTPUT_TOKENS // len(_SENTENCE) + 1))[:MAX_OUTPUT_TOKENS]
"""What every server here answers, cut to the tokens that were asked for: one token a character."""


class BrokenAnswer(Exception):
    """An answer that is not what was asked for: what was measured means nothing."""


def tape() -> str:
    """A tape file that answers every prompt with `TEXT`."""
    return json.dumps({"prompt_hash": "*", "token_ids": list(TEXT.encode())}) + "\n"


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """`max_tokens` output tokens of `TEXT`, at most `MAX_OUTPUT_TOKENS`."""

    key: str
    model: str
    max_tokens: int
    is_streamed: bool = True

    def to_bytes(self) -> bytes:
        body: dict[str, object] = {"model": self.model, "prompt": PROMPT, "max_tokens": self.max_tokens}
        if self.is_streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        data = json.dumps(body).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\n"
            "Host: 127.0.0.1\r\n"
            f"Authorization: Bearer {self.key}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """A whole answer's times, in seconds. An event counts if it holds text."""

    num_tokens: int
    num_events: int
    ttft_s: float
    gaps_s: tuple[float, ...]


def check(ask: BenchRequest, received: Received) -> CheckedAnswer:
    """Raises `BrokenAnswer` unless it is whole, counted, and the tape's text."""
    answer = AnswerReader(expected_tokens=ask.max_tokens)
    if received.status != 200:
        answer.on_body(b"".join(received.parts))
        raise BrokenAnswer(f"an answer had status {received.status}: {answer.reason}")
    if ask.is_streamed:
        events = EventStream()
        for part, at in zip(received.parts, received.times, strict=True):
            for data in events.feed(part):
                answer.on_event(data, at)
    else:
        answer.on_body(b"".join(received.parts))
    if answer.status != OK:
        raise BrokenAnswer(f"an answer was not whole: {answer.status} {answer.reason}".rstrip())
    if answer.text != TEXT[: ask.max_tokens]:
        raise BrokenAnswer("an answer was not the tape's text")
    return CheckedAnswer(
        num_tokens=answer.output_tokens,
        num_events=len(answer.token_times),
        ttft_s=received.times[0] - received.sent_at,
        gaps_s=tuple(late - early for early, late in pairwise(answer.token_times)),
    )
