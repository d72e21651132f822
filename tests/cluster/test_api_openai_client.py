"""The `openai` package against the app, in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import openai
import pytest

from cluster.api.errors import ApiError
from cluster.generation import TextDelta
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


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny", "small"]
    assert (await client.models.retrieve("tiny")).owned_by == "headrace"


async def test_errors_are_the_clients_own_kinds(client: openai.AsyncOpenAI, gateway: FakeGateway) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, n=2)
    assert (bad.value.param, bad.value.code) == ("n", "unsupported_parameter")
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
