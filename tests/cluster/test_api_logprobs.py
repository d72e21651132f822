"""Logprobs in both shapes: exact, as many as asked for, each beside its text, and always JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cluster.api.logprobs import TokenNames, chat_logprobs, text_logprobs
from cluster.generation import TextDelta, ToldToken
from engine.request import TokenLogprobs
from engine.tokenizer import ByteTokenizer
from tests.cluster.fakes import FakeGateway, say

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
NAMES = TokenNames(ByteTokenizer())
END = 258


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hello", **fields}


def told(token_id: int, logprob: float = -0.5, *top: tuple[int, float], text_offset: int = 0) -> ToldToken:
    return ToldToken(token_id, text_offset, TokenLogprobs(logprob, top))


H = told(ord("h"), -0.5, (ord("h"), -0.5), (ord("j"), -1.5))
I = told(ord("i"), -0.25, (ord("i"), -0.25), (END, -3.0), text_offset=1)  # noqa: E741
E = told(END, -0.125, (END, -0.125), (ord("!"), -math.inf), text_offset=2)
SCRIPT = [TextDelta("h", tokens=(H,)), TextDelta("i", tokens=(I,)), TextDelta("", "stop", tokens=(E,))]

CHAT_CONTENT = [
    {
        "token": "h",
        "logprob": -0.5,
        "bytes": [104],
        "top_logprobs": [
            {"token": "h", "logprob": -0.5, "bytes": [104]},
            {"token": "j", "logprob": -1.5, "bytes": [106]},
        ],
    },
    {
        "token": "i",
        "logprob": -0.25,
        "bytes": [105],
        "top_logprobs": [
            {"token": "i", "logprob": -0.25, "bytes": [105]},
            {"token": "<|im_end|>", "logprob": -3.0, "bytes": None},
        ],
    },
    {
        "token": "<|im_end|>",
        "logprob": -0.125,
        "bytes": None,
        "top_logprobs": [
            {"token": "<|im_end|>", "logprob": -0.125, "bytes": None},
            {"token": "!", "logprob": -9999.0, "bytes": [33]},
        ],
    },
]
TEXT_LOGPROBS = {
    "tokens": ["h", "i", "<|im_end|>"],
    "token_logprobs": [-0.5, -0.25, -0.125],
    "top_logprobs": [
        {"h": -0.5, "j": -1.5},
        {"i": -0.25, "<|im_end|>": -3.0},
        {"<|im_end|>": -0.125, "!": -9999.0},
    ],
    "text_offset": [0, 1, 2],
}


class TestAChat:
    async def test_tells_each_token_with_its_bytes_and_the_likeliest(self, gateway: FakeGateway) -> None:
        gateway.generator.script = SCRIPT
        (choice,) = (await gateway.post(CHAT, chat(logprobs=True, top_logprobs=2))).json()["choices"]
        assert choice["logprobs"] == {"content": CHAT_CONTENT, "refusal": None}
        assert gateway.generator.last.sampling.num_logprobs == 2

    async def test_streams_them_beside_the_text(self, gateway: FakeGateway) -> None:
        gateway.generator.script = SCRIPT
        body = chat(logprobs=True, top_logprobs=2, stream=True)
        *events, _ = (await gateway.post(CHAT, body)).events
        said = [
            (event["choices"][0]["delta"].get("content"), event["choices"][0]["logprobs"]) for event in events
        ]
        assert said == [
            ("", None),
            ("h", {"content": CHAT_CONTENT[:1], "refusal": None}),
            ("i", {"content": CHAT_CONTENT[1:2], "refusal": None}),
            ("", {"content": CHAT_CONTENT[2:], "refusal": None}),
            (None, None),
        ]

    @pytest.mark.parametrize(
        ("fields", "num_logprobs"),
        [
            ({}, None),
            ({"logprobs": False}, None),
            ({"logprobs": False, "top_logprobs": 0}, None),
            ({"logprobs": True}, 0),
            ({"logprobs": True, "top_logprobs": 0}, 0),
            ({"logprobs": True, "top_logprobs": 20}, 20),
        ],
    )
    async def test_asks_the_engine_for_as_many_as_it_was_asked(
        self, gateway: FakeGateway, fields: dict[str, Any], num_logprobs: int | None
    ) -> None:
        (choice,) = (await gateway.post(CHAT, chat(**fields))).json()["choices"]
        assert gateway.generator.last.sampling.num_logprobs == num_logprobs
        assert (choice["logprobs"] is None) == (num_logprobs is None)

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 259}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
            ({"top_logprobs": 1}, "top_logprobs"),
            ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
            ({"logprobs": 1}, "logprobs"),
            ({"logprobs": 5}, "logprobs"),
        ],
    )
    async def test_refuses_what_it_cannot_tell(
        self, gateway: FakeGateway, fields: dict[str, Any], param: str
    ) -> None:
        call = await gateway.post(CHAT, chat(**fields))
        assert (call.status, call.error["param"]) == (400, param)


class TestACompletion:
    async def test_tells_them_in_the_older_shape(self, gateway: FakeGateway) -> None:
        gateway.generator.script = SCRIPT
        (choice,) = (await gateway.post(TEXT, text(logprobs=2))).json()["choices"]
        assert choice["logprobs"] == TEXT_LOGPROBS

    async def test_streams_them_beside_the_text(self, gateway: FakeGateway) -> None:
        gateway.generator.script = SCRIPT
        *events, _ = (await gateway.post(TEXT, text(logprobs=2, stream=True))).events
        choices = [event["choices"][0] for event in events]
        assert [choice["text"] for choice in choices] == ["h", "i", "", ""]
        parts = [choice["logprobs"] for choice in choices]
        assert parts.pop() is None
        assert {
            name: [one for part in parts for one in part[name]] for name in TEXT_LOGPROBS
        } == TEXT_LOGPROBS

    @pytest.mark.parametrize("count", [0, 5, 20])
    async def test_asks_the_engine_for_as_many(self, gateway: FakeGateway, count: int) -> None:
        assert (await gateway.post(TEXT, text(logprobs=count))).status == 200
        assert gateway.generator.last.sampling.num_logprobs == count

    @pytest.mark.parametrize("count", [-1, 21, True, False, "1", 1.0, 10**9])
    async def test_refuses_what_is_no_such_count(self, gateway: FakeGateway, count: Any) -> None:
        call = await gateway.post(TEXT, text(logprobs=count))
        assert (call.status, call.error["param"]) == (400, "logprobs")


def test_the_taken_token_stands_beside_the_likeliest_in_the_older_shape() -> None:
    token = told(ord("x"), -7.0, (ord("a"), -0.5), (ord("b"), -1.0))
    assert text_logprobs([token], NAMES).top_logprobs == ({"a": -0.5, "b": -1.0, "x": -7.0},)
    assert text_logprobs([told(ord("x"), -7.0)], NAMES).top_logprobs == ({"x": -7.0},)


def test_of_tokens_with_one_text_the_likeliest_is_told_in_the_older_shape() -> None:
    token = told(0xE2, -2.0, (0xF0, -0.5), (0xE2, -2.0))
    assert text_logprobs([token], NAMES).top_logprobs == ({"\ufffd": -0.5},)


def test_a_part_of_a_character_has_its_bytes() -> None:
    (token,) = chat_logprobs([told(0xE2)], NAMES).content
    assert (token.token, token.bytes) == ("\ufffd", (0xE2,))


@pytest.mark.parametrize("logprob", [-math.inf, math.nan, -1e300])
def test_what_json_cannot_say_is_the_lowest(logprob: float) -> None:
    (token,) = chat_logprobs([told(1, logprob, (2, logprob))], NAMES).content
    assert (token.logprob, token.top_logprobs[0].logprob) == (-9999.0, -9999.0)
    assert text_logprobs([told(1, logprob)], NAMES).token_logprobs == (-9999.0,)


async def test_an_answer_without_a_token_has_an_empty_list(gateway: FakeGateway) -> None:
    gateway.generator.script = say("")
    (choice,) = (await gateway.post(CHAT, chat(logprobs=True))).json()["choices"]
    assert choice["logprobs"] == {"content": [], "refusal": None}


async def test_siblings_have_their_own(gateway: FakeGateway) -> None:
    gateway.generator.script = [
        TextDelta("i", "stop", sibling=1, tokens=(I,)),
        TextDelta("h", "stop", sibling=0, tokens=(H,)),
    ]
    choices = (await gateway.post(CHAT, chat(logprobs=True, top_logprobs=2, n=2))).json()["choices"]
    assert [choice["logprobs"]["content"] for choice in choices] == [CHAT_CONTENT[:1], CHAT_CONTENT[1:2]]


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"logprobs": 20}, 2**19 // 21),
        ({"logprobs": 20, "n": 16}, 2**19 // (21 * 16)),
        ({"logprobs": 0, "n": 2}, 2**18),
        ({}, 32768),
    ],
)
async def test_the_longest_answer_is_one_whose_logprobs_can_be_held(
    fields: dict[str, Any], most: int
) -> None:
    gateway = await FakeGateway(max_model_len=lambda: 1_000_000).open()
    gateway.generator.script = [
        one for sibling in range(fields.get("n", 1)) for one in say("", sibling=sibling)
    ]
    call = await gateway.post(TEXT, text(**fields, max_tokens=500_000))
    assert call.headers["x-headrace-max-tokens"] == str(min(most, 32768))
    assert gateway.generator.last.sampling.max_tokens == min(most, 32768)
    await gateway.post(TEXT, text(**fields))
    assert gateway.generator.last.sampling.max_tokens == min(most, 32768)


async def test_no_stream_says_what_is_no_json(gateway: FakeGateway) -> None:
    gateway.generator.script = [TextDelta("h", "stop", tokens=(told(104, -math.inf, (1, math.nan)),))]
    call = await gateway.post(CHAT, chat(logprobs=True, top_logprobs=1, stream=True))
    blocks = call.body.decode().split("\n\n")[:-2]
    assert blocks
    for block in blocks:
        json.loads(block.removeprefix("data: "), parse_constant=pytest.fail)
