"""The `openai` package against the app, in one process."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import httpx2
import openai
import pytest

from cluster.api.errors import ApiError
from cluster.generation import TextDelta, ToldToken
from engine.request import TokenLogprobs
from tests.cluster.fakes import FakeGateway

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(gateway: FakeGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx2.ASGITransport(gateway.app)
    async with openai.AsyncOpenAI(
        api_key=gateway.keys["inference"],
        base_url="http://gateway/v1",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    ) as client:
        yield client


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, seed=1, stop=["x"])
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_a_chat_goes_on_with_what_the_client_holds(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    said = answer.choices[0].message
    await client.chat.completions.create(model="tiny", messages=[*MESSAGES, said, *MESSAGES])
    await client.chat.completions.create(model="tiny", messages=[*MESSAGES, said.model_dump(), *MESSAGES])


async def test_a_chat_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello world"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 2


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt="hello", max_tokens=5)
    assert answer.choices[0].text == "Hello world"
    stream = await client.completions.create(model="tiny", prompt=[1, 2], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello world"


H = ToldToken(ord("h"), 0, TokenLogprobs(-0.5, ((ord("h"), -0.5), (0xE2, -1.5))))
END = ToldToken(258, 1, TokenLogprobs(-0.125, ((258, -0.125), (ord("!"), -math.inf))))
TWO = [
    TextDelta("h", tokens=(H,)),
    TextDelta("h", "length", sibling=1, tokens=(H,)),
    TextDelta("", "stop", tokens=(END,)),
]
"""Two siblings with logprobs."""


async def test_several_chat_answers_with_logprobs(client: openai.AsyncOpenAI, gateway: FakeGateway) -> None:
    gateway.generator.script = TWO
    answer = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2, presence_penalty=0.5,
        frequency_penalty=-0.5, logit_bias={"5": -100}, extra_body={"min_p": 0.1, "repetition_penalty": 1.1},
    )  # fmt: skip
    assert [(choice.index, choice.finish_reason) for choice in answer.choices] == [(0, "stop"), (1, "length")]
    first, end = answer.choices[0].logprobs.content
    assert (first.token, first.logprob, first.bytes) == ("h", -0.5, [104])
    assert [(top.token, top.bytes) for top in first.top_logprobs] == [("h", [104]), ("\ufffd", [0xE2])]
    assert (end.token, end.bytes, end.top_logprobs[1].logprob) == ("<|im_end|>", None, -9999.0)
    assert answer.usage.completion_tokens == 3


async def test_a_stream_of_several_chat_answers_with_logprobs(
    client: openai.AsyncOpenAI, gateway: FakeGateway
) -> None:
    gateway.generator.script = TWO
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    *chunks, last = [chunk async for chunk in stream]
    assert (last.choices, last.usage.completion_tokens) == ([], 3)
    said = [(chunk.choices[0].index, chunk.choices[0].delta.content) for chunk in chunks]
    assert said == [(0, ""), (0, "h"), (1, ""), (1, "h"), (1, None), (0, ""), (0, None)]
    told = [
        (c.choices[0].index, c.choices[0].logprobs.content[0].token) for c in chunks if c.choices[0].logprobs
    ]
    assert told == [(0, "h"), (1, "h"), (0, "<|im_end|>")]


async def test_several_completions_with_logprobs(client: openai.AsyncOpenAI, gateway: FakeGateway) -> None:
    gateway.generator.script = TWO
    answer = await client.completions.create(model="tiny", prompt="hello", n=2, best_of=2, logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    logprobs = answer.choices[0].logprobs
    assert (logprobs.tokens, logprobs.token_logprobs) == (["h", "<|im_end|>"], [-0.5, -0.125])
    assert logprobs.top_logprobs == [{"h": -0.5, "\ufffd": -1.5}, {"<|im_end|>": -0.125, "!": -9999.0}]
    assert logprobs.text_offset == [0, 1]
    gateway.generator.script = TWO
    stream = await client.completions.create(model="tiny", prompt="hello", n=2, logprobs=2, stream=True)
    told = [chunk.choices[0].logprobs async for chunk in stream]
    assert [one.tokens for one in told if one is not None] == [["h"], ["h"], ["<|im_end|>"]]


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny", "small"]
    assert (await client.models.retrieve("tiny")).owned_by == "headrace"


async def test_errors_are_the_clients_own_kinds(client: openai.AsyncOpenAI, gateway: FakeGateway) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, n=17)
    assert (bad.value.param, bad.value.code) == ("n", "invalid_value")
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="hr-nobody").models.list()


async def test_an_error_inside_a_stream_ends_it(client: openai.AsyncOpenAI, gateway: FakeGateway) -> None:
    gateway.generator.script = [TextDelta("a"), ApiError(500, "replica_lost", "The replica was lost.")]
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="The replica was lost") as error:
        [chunk async for chunk in stream]
    assert error.value.code == "replica_lost"
