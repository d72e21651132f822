"""Thousands of bodies that nobody means well with: never a 5xx, never slow, never more memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from random import Random
from typing import Any

import psutil
import pytest

from cluster.api.openai_fields import HARMLESS, NEUTRAL
from cluster.api.types import MAX_N, ChatCompletionRequest, CompletionRequest
from tests.cluster.fakes import FakeGateway, say
from tests.cluster.test_api_bodies import CHAT, NOT_JSON, TEXT, TOO_MUCH, chat, text

MIB = 2**20
NAMES = sorted(
    {
        *ChatCompletionRequest.model_fields,
        *CompletionRequest.model_fields,
        *HARMLESS,
        *NEUTRAL,
        "x",
        "",
        "n\0",
    }
)
GOOD: list[tuple[str, dict[str, Any]]] = [
    (CHAT, chat(n=2, logprobs=True, top_logprobs=3, logit_bias={"5": 1.5}, stop=["a", "b"], seed=3)),
    (CHAT, chat(stream=True, stream_options={"include_usage": True}, presence_penalty=0.5, min_tokens=2)),
    (TEXT, text(logprobs=3, stop_token_ids=[1, 2], repetition_penalty=1.1, min_p=0.05, top_k=5)),
    (TEXT, text(prompt=[1, 2, 3], best_of=1, temperature=0.5, max_tokens=9, echo=False)),
]
ODD: list[Any] = [
    *[None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, 1e308, 5e-324, -0.0],
    *["", "1", "yes", "\ud83d\ude00", "\u202e", "\x00", "x" * 5000, "NaN", "../../etc/passwd"],
    *[[], {}, [[]], [None], [{}], [1, "a"], {"a": {"b": []}}, {"5": 1}, {"-1": 1}, {"5": None}, [1] * 500],
    *[{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}, {"type": "text", "text": "hi"}],
    *[[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]],
    *[[{"role": "user", "content": "hi"}] * 200, [{"role": "tool", "content": ""}], [{"content": "hi"}]],
]


def spoilt_bytes(random: Random, body: dict[str, Any]) -> bytes:
    data = bytearray(json.dumps(body).encode())
    for _ in range(random.randint(1, 4)):
        data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data)


def cut(random: Random, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    start, end = sorted(random.sample(range(len(data)), 2))
    return data[:start] + data[end:] if random.random() < 0.5 else data[:end]


def odd_fields(random: Random, body: dict[str, Any]) -> bytes:
    odd = {random.choice(NAMES): random.choice(ODD) for _ in range(random.randint(1, 4))}
    return json.dumps({**body, **odd}).encode()


def odd_place(random: Random, body: dict[str, Any]) -> bytes:
    """An odd value somewhere inside."""
    whole = json.loads(json.dumps(body))
    place = whole
    while isinstance(place, dict | list) and place:
        key = random.choice(list(place)) if isinstance(place, dict) else random.randrange(len(place))
        if random.random() < 0.5 or not isinstance(place[key], dict | list):
            place[key] = random.choice(ODD)
            break
        place = place[key]
    return json.dumps(whole).encode()


def listed(random: Random, body: dict[str, Any]) -> bytes:
    return random.choice(LISTED)


def raw_tokens(random: Random, body: dict[str, Any]) -> bytes:
    """Pieces of JSON in no order."""
    pieces = [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"n"',
        b'"model"',
        b'"tiny"',
        b"1e999",
        b"NaN",
        b"-",
        b"null",
    ]
    return b"".join(random.choices(pieces, k=random.randint(1, 30)))


LISTED = [
    *(body for body in NOT_JSON.values() if len(body) < 100_000),
    *[json.dumps(chat(n=value)).encode() for value in (0, 17, 128, 10**9, "2", True, 1.5)],
    json.dumps(chat(n=128, logprobs=True, top_logprobs=20, max_tokens=2**31)).encode(),
    *[
        json.dumps(chat(logit_bias={key: value})).encode()
        for key in ("259", "-1", "x", "5")
        for value in (1e9, "a")
    ],
    *[json.dumps(chat(stop_token_ids=[value])).encode() for value in (259, -1, 2**64, "1")],
    b'{"model": "tiny", "prompt": "a", "temperature": ' + b"9" * 400 + b"}",
    b'{"model": "tiny", "prompt": "a", "logit_bias": {"5": 1e400}}',
    b'{"model": "tiny", "prompt": "a", "seed": -' + b"9" * 4000 + b"}",
]
KINDS: list[Callable[[Random, dict[str, Any]], bytes]] = [
    *[
        spoilt_bytes,
        spoilt_bytes,
        cut,
        odd_fields,
        odd_fields,
        odd_fields,
        odd_place,
        odd_place,
        raw_tokens,
        listed,
    ]
]


async def answer(gateway: FakeGateway, path: str, body: bytes) -> int:
    """The status; an error is one JSON error."""
    begun = time.process_time()
    call = await gateway.post(path, body)
    assert time.process_time() - begun < 1, body[:200]
    assert call.status in (200, 400, 404), (call.status, body[:200])
    if call.status != 200:
        assert call.error["message"], body[:200]
        assert call.error["type"] in ("invalid_request_error", "not_found_error")
    gateway.generator.generations.clear()
    return call.status


@pytest.mark.parametrize("num_bodies", [3_000, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_none_of_them_makes_the_server_fail_slow_or_fat(gateway: FakeGateway, num_bodies: int) -> None:
    gateway.generator.script = [one for sibling in range(MAX_N) for one in say("a", sibling=sibling)]
    random = Random(0)
    process = psutil.Process()
    for body in TOO_MUCH.values():  # what memory the largest takes for a moment is not what is kept
        await answer(gateway, CHAT, body)
    rss = process.memory_info().rss
    statuses: list[int] = []
    for number in range(num_bodies):
        path, body = random.choice(GOOD)
        kind = KINDS[number % len(KINDS)]
        statuses.append(await answer(gateway, random.choice([path, path, CHAT, TEXT]), kind(random, body)))
        gateway.generator.requests.clear()
    assert process.memory_info().rss - rss < 64 * MIB
    assert statuses.count(400) > num_bodies * 0.8
    assert statuses.count(200) > num_bodies * 0.01, "some mutations leave a good body"
