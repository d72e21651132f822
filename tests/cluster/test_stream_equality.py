"""A stream, joined, is the answer that is not streamed, and both are what the tape says: of many tapes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from engine.request import TokenLogprobs
from engine.tape import TapeSpec, prompt_hash
from engine.tokenizer import ByteTokenizer
from tests.builders import EOS
from tests.builders_text import num_tokens_to_stop, whole_text
from tests.cluster.fakes import Call
from tests.cluster.in_process import InProcess, in_process

BATCH = 100
MAX_N = 3
PIECES = [*'abcEND \n"', "한", "국", "é", "e\u0301", "😀", "🇩🇪", "👩‍👩‍👧", "\ufffd"]
STOPS = ["END", "N", "국", "한국", "\u0301", "🇪", "\ufffd", "ab", "aab", "b\n", "👩"]
TOKENIZER = ByteTokenizer()


@dataclass
class Case:
    """One prompt, its siblings' tapes, and how it is asked."""

    prompt: str
    answers: list[tuple[int, ...]]
    logprobs: list[tuple[TokenLogprobs, ...]]
    body: dict[str, Any]

    @property
    def is_chat(self) -> bool:
        return "messages" in self.body

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"


def make_case(random: Random, number: int) -> Case:
    answers = [make_answer(random) for _ in range(MAX_N)]
    body: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": random.randint(1, 30)}
    body["n"] = random.choice([1, 1, 1, 2, 3])
    if random.random() < 0.5:
        body["stop"] = random.sample(STOPS, random.randint(1, 4))
    prompt = f"{number}"
    if random.random() < 0.5:
        body["messages"] = [{"role": "user", "content": prompt}]
        if random.random() < 0.5:
            body |= {"logprobs": True, "top_logprobs": random.randint(0, 3)}
    else:
        body["prompt"] = prompt
        if random.random() < 0.5:
            body["logprobs"] = random.randint(0, 3)
    logprobs = [tuple(make_logprobs(random, token_id) for token_id in answer) for answer in answers]
    return Case(prompt, answers, logprobs, body)


def make_answer(random: Random) -> tuple[int, ...]:
    """Bytes of some text, control tokens and junk among them, perhaps cut inside a character."""
    data = list("".join(random.choices(PIECES, k=random.randint(0, 8))).encode())
    if random.random() < 0.3:
        data.insert(random.randint(0, len(data)), random.choice([256, 257, 0xE2, 0x80, 0xFF]))
    return tuple(data[: random.randint(0, len(data))] if random.random() < 0.2 else data)


def make_logprobs(random: Random, token_id: int) -> TokenLogprobs:
    others = random.sample(range(259), 2)
    top = ((others[0], -0.25), (token_id, -0.5), (others[1], float("-inf")))
    return TokenLogprobs(-random.randint(1, 9) / 8, top)


def specs_of(cases: Sequence[Case]) -> list[TapeSpec]:
    names = [prompt_hash(prompt_of(case)) for case in cases]
    return [
        TapeSpec(
            {name: case.answers[sibling] for name, case in zip(names, cases, strict=True)},
            logprobs={name: case.logprobs[sibling] for name, case in zip(names, cases, strict=True)},
        )
        for sibling in range(MAX_N)
    ]


def prompt_of(case: Case) -> list[int]:
    if not case.is_chat:
        return TOKENIZER.encode(case.prompt)
    return [257, *b"user\n", *case.prompt.encode(), 258, 257]


# --- what was answered ----------------------------------------------------------------------


def whole_of(call: Call) -> tuple[list[Any], Any]:
    """(text, finish, logprobs) of each choice, and the usage."""
    body = call.json()
    choices = []
    for index, choice in enumerate(body["choices"]):
        assert choice["index"] == index
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        choices.append((text, choice["finish_reason"], choice["logprobs"]))
    return choices, body["usage"]


def joined(case: Case, call: Call) -> tuple[list[Any], Any]:
    """The same of a stream; checks that each choice opens once, ends once, and [DONE] comes once, last."""
    *events, done = call.events
    assert done == "[DONE]"
    usage = None
    if case.body["stream_options"]["include_usage"]:
        *events, last = events
        assert last["choices"] == []
        usage = last["usage"]
        assert all(event["usage"] is None for event in events)
    return [joined_choice(case, events, index) for index in range(case.body["n"])], usage


def joined_choice(case: Case, events: list[Any], index: int) -> tuple[str, str, Any]:
    mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
    assert [choice["finish_reason"] is not None for choice in mine] == [False] * (len(mine) - 1) + [True]
    if case.is_chat:
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in mine[1:])
    texts = [choice["delta"].get("content", "") if case.is_chat else choice["text"] for choice in mine]
    return "".join(texts), mine[-1]["finish_reason"], joined_logprobs([c["logprobs"] for c in mine])


def joined_logprobs(parts: list[Any]) -> Any:
    told = [part for part in parts if part is not None]
    if not told:
        return None
    return {
        name: None if value is None else [one for part in told for one in part[name]]
        for name, value in told[0].items()
    }


# --- what should be -------------------------------------------------------------------------


def expected(case: Case) -> tuple[list[tuple[str, str]], int]:
    """(text, finish) of each choice, and the completion tokens."""
    choices, num_tokens = [], 0
    for answer in case.answers[: case.body["n"]]:
        made = [*answer, EOS][: case.body["max_tokens"]]
        tokens = [TOKENIZER.token_bytes(token_id) for token_id in made]
        text, is_stopped = whole_text(tokens, case.body.get("stop", ()))
        num_tokens += num_tokens_to_stop(tokens, case.body.get("stop", ()))
        choices.append((text, "stop" if is_stopped or made[-1] == EOS else "length"))
    return choices, num_tokens


def check(case: Case, whole_call: Call, stream_call: Call) -> None:
    assert (whole_call.status, stream_call.status) == (200, 200), whole_call.body
    whole, usage = whole_of(whole_call)
    stream, stream_usage = joined(case, stream_call)
    assert stream == whole
    if stream_usage is not None:
        # The second of the two finds the first's prompt cached.
        uncached = {name: value for name, value in usage.items() if name != "prompt_tokens_details"}
        assert {name: stream_usage[name] for name in uncached} == uncached
    texts, num_tokens = expected(case)
    assert [(text, finish) for text, finish, _ in whole] == texts
    assert usage["completion_tokens"] == num_tokens
    assert usage["prompt_tokens"] == len(prompt_of(case))
    check_logprobs(case, whole, num_tokens)


def check_logprobs(case: Case, whole: list[Any], num_tokens: int) -> None:
    """One for each counted token, with its bytes and as the tape has it."""
    asked = case.body.get("logprobs", False)
    if asked is False:
        assert all(logprobs is None for _, _, logprobs in whole)
        return
    told = [logprobs["content" if case.is_chat else "tokens"] for _, _, logprobs in whole]
    assert sum(map(len, told)) == num_tokens
    for sibling, (text, _, logprobs) in enumerate(whole):
        known = [one.logprob for one in case.logprobs[sibling]]
        if case.is_chat:
            values = [token["logprob"] for token in logprobs["content"]]
            data = b"".join(bytes(token["bytes"] or ()) for token in logprobs["content"])
            assert data.decode("utf-8", "replace").startswith(text)
        else:
            values = logprobs["token_logprobs"]
            check_offsets(text, logprobs)
        assert values == [*known, 0.0][: len(values)]


def check_offsets(text: str, logprobs: Any) -> None:
    """A token's text stands where its offset says, as far as a stop string left it there."""
    if "\ufffd" in text:
        return
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert text[offset:].startswith(token) or offset + len(token) > len(text)


async def ask(gateway: InProcess, case: Case) -> tuple[Call, Call]:
    body = case.body | {"stream": True}
    whole = gateway.post(case.path, {**case.body, "stream": False} | {"stream_options": None})
    return await asyncio.gather(whole, gateway.post(case.path, body))


@pytest.mark.parametrize("num_tapes", [500, pytest.param(5000, marks=pytest.mark.soak)])
async def test_a_stream_joined_is_the_whole_answer(num_tapes: int) -> None:
    random = Random(0)
    cases = [make_case(random, number) for number in range(num_tapes)]
    for case in cases:
        case.body["stream_options"] = {"include_usage": random.random() < 0.5}
    async with in_process(specs_of(cases)) as gateway:
        for start in range(0, num_tapes, BATCH):
            gateway.link.chunk = 1 + start // BATCH % 4
            batch = cases[start : start + BATCH]
            calls = await asyncio.gather(*(ask(gateway, case) for case in batch))
            for case, (whole, stream) in zip(batch, calls, strict=True):
                try:
                    check(case, whole, stream)
                except AssertionError as error:
                    raise AssertionError(f"{json.dumps(case.body)}: {case.answers}") from error
        gateway.core.check_integrity()
