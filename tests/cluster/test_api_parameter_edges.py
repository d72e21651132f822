"""Every field of both endpoints at its edges, beside three good requests that must not notice.

The edges are read off the model's own description: a field that is added is tested, or named here.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.api.described import documented
from cluster.api.types import ChatCompletionRequest, CompletionRequest, SamplingFields
from engine.tape import ANY_PROMPT
from tests.cluster.fakes import Call
from tests.cluster.in_process import InProcess, in_process, tape

VOCABULARY = 259
USER = {"role": "user", "content": "hi"}
MODELS: dict[str, type[SamplingFields]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [USER], "max_tokens": 4},
    "/v1/completions": {"model": "tiny", "prompt": "hello", "max_tokens": 4},
}
WITH: dict[str, dict[str, Any]] = {
    "best_of": {"n": 16},
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "max_completion_tokens": {"max_tokens": None},
}
"""What a field needs beside it to be good."""
FREE_FIELDS: dict[str, tuple[list[Any], list[Any]]] = {
    "ignore_eos": ([True, False], []),
    "logit_bias": (
        [{}, {"0": 0}, {"258": 100, "0": -100.0}, {str(i): 1 for i in range(VOCABULARY)}],
        [
            *[
                {"259": 5},
                {"-1": 5},
                {"x": 1},
                {"": 1},
                {"1.0": 1},
                {"01": 1},
                {" 1": 1},
                {"+1": 1},
                {"٣": 1},
            ],
            *[{"1" * 4000: 1}, {"99999999999": 1}, {"2147483648": 1}, {"18446744073709551615": 1}],
            *[{"1": 1e9}, {"1": 100.1}, {"1": -101}, {"1": True}, {"1": "1"}, {"1": None}, {"1": [1]}],
            *[{"1": 10**400}, {str(i): 1 for i in range(301)}],
        ],
    ),
    "logprobs": ([True, False], []),
    "messages": ([[USER] * 100], [[], [None], [USER, {"role": "user"}], [[USER]]]),
    "model": (["tiny", "small"], ["", "x" * 257]),
    "prompt": (["a", [0], [258], ["a"], [[1, 2]]], ["", [], [""], [[]], [-1], [259], [2**63], ["a", "b"]]),
    "stop": (["a", "x" * 256, ["a"] * 4], ["", [], [""], ["a"] * 5, ["a", 1], "x" * 257, ["x" * 257]]),
    "stop_token_ids": (
        [[], [0, 258], list(range(64))],
        [[259], [-1], [0, 2**31], [2**63], [True], [1.0], ["1"], [None], [[1]], [1] * 65],
    ),
    "stream": ([True, False], []),
    "stream_options": ([{}, {"include_usage": True}], [{"include_usage": 1}, {"other": True}]),
    "user": (["", "x" * 512], ["x" * 513]),
}
"""Fields without bounds in numbers: good and bad values. Wrong types are bad anyway."""
TOGETHER: dict[str, tuple[list[Any], list[Any]]] = {
    "best_of": ([16], [1, 15]),
    "min_tokens": ([4], [5, 2**63 - 1]),
}
"""Edges that another field sets: here `n` 16 and `max_tokens` 4."""

TYPES = {
    "boolean": [True, False],
    "string": ["", "1", "true", "NaN"],
    "integer": [1],
    "number": [1.5, 1.0, 1e300],
    "array": [[], [1], [[]]],
    "object": [{}, {"a": 1}],
}


def branches(path: str, name: str) -> list[dict[str, Any]]:
    """What a field may be, null left out."""
    schema = documented(MODELS[path])["requestBody"]["content"]["application/json"]["schema"]
    field = schema["properties"][name]
    return [one for one in field.get("anyOf", [field]) if one.get("type") != "null"]


def has_bounds(path: str, name: str) -> bool:
    return all(one["type"] in ("integer", "number") for one in branches(path, name))


def edges(path: str, name: str) -> tuple[list[Any], list[Any]]:
    """Values that must be taken, and values that must be refused."""
    good: list[Any] = []
    bad = [*wrong_types(path, name)]
    if has_bounds(path, name):
        (schema,) = branches(path, name)
        numbers = bounds(schema)
        good += numbers[0]
        bad += [*numbers[1], 10**30, -(10**30), 10**400, math.nan, math.inf, -math.inf]
    if name in FREE_FIELDS and not has_bounds(path, name):
        good, bad = good + FREE_FIELDS[name][0], bad + FREE_FIELDS[name][1]
    if name in TOGETHER:
        bad += TOGETHER[name][1]
        good = [value for value in good if value not in bad] + TOGETHER[name][0]
    return good, bad


def wrong_types(path: str, name: str) -> Iterator[Any]:
    allowed = {one["type"] for one in branches(path, name)}
    if "number" in allowed:
        allowed.add("integer")
    for kind, values in TYPES.items():
        if kind not in allowed:
            yield from values


def bounds(schema: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    good, bad = [], []
    is_integer = schema["type"] == "integer"
    for word, outward in (("inimum", -1), ("aximum", 1)):
        closed, opened = schema.get(f"m{word}"), schema.get(f"exclusiveM{word}")
        if closed is not None:
            good.append(closed)
            bad.append(closed + outward if is_integer else beyond(closed, outward))
        elif opened is not None:
            good.append(beyond(opened, -outward))
            bad.append(opened)
    return good, bad


def beyond(number: float, direction: int) -> float:
    return math.nextafter(number, direction * math.inf)


FIELDS = [(path, name) for path, model in MODELS.items() for name in model.model_fields]


def test_what_both_endpoints_share_is_no_request_of_its_own() -> None:
    with pytest.raises(TypeError, match="num_logprobs"):
        SamplingFields(model="tiny")  # type: ignore[abstract]


@pytest.mark.parametrize(("path", "name"), FIELDS)
def test_every_field_has_edges(path: str, name: str) -> None:
    """A new one has bounds in numbers at both ends, or its values stand in this file."""
    if name in FREE_FIELDS and not has_bounds(path, name):
        return
    (schema,) = branches(path, name)
    assert len(bounds(schema)[0]) == 2


async def post(gateway: InProcess, path: str, body: dict[str, Any]) -> Call:
    return await gateway.post(path, json.dumps(body).encode())


async def good_answers(gateway: InProcess) -> list[Any]:
    """Three requests that have nothing to do with the edge, without the part that is each call's own.

    Of the stream, what it says: how many tokens come in one event is a matter of time.
    """
    siblings = {"n": 3, "logprobs": 3, "stop": ["ne"], "max_tokens": 30}
    calls = await asyncio.gather(
        post(gateway, "/v1/completions", BODIES["/v1/completions"] | siblings),
        post(
            gateway,
            "/v1/chat/completions",
            BODIES["/v1/chat/completions"] | {"stream": True, "max_tokens": 9},
        ),
        post(gateway, "/v1/completions", {"model": "tiny", "prompt": [1, 2, 3], "temperature": 0}),
    )
    assert [call.status for call in calls] == [200] * 3
    whole, stream, short = calls
    return [without_id(whole), what_is_said(stream), without_id(short)]


def without_id(call: Call) -> bytes:
    return call.body.replace(call.headers["x-request-id"].encode(), b"")


def what_is_said(call: Call) -> tuple[str, list[str], str]:
    """Text, finish reasons and last event of a chat stream."""
    *chunks, last = call.events
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, [choice["finish_reason"] for choice in choices if choice["finish_reason"]], last


async def test_an_edge_is_taken_or_named_and_nobody_beside_it_notices() -> None:
    sizes = {"enable_prefix_caching": False}  # so that a second answer counts no cached tokens
    async with in_process([tape({ANY_PROMPT: b"turbines on a line"})], **sizes) as gateway:
        alone = await good_answers(gateway)
        for path, name in FIELDS:
            good, bad = edges(path, name)
            bodies = [BODIES[path] | WITH.get(name, {}) | {name: value} for value in good + bad]
            beside = asyncio.ensure_future(good_answers(gateway))
            calls = await asyncio.gather(*(post(gateway, path, body) for body in bodies))
            assert await beside == alone, f"answers beside edges of {name} changed"
            for value, call in zip(good, calls[: len(good)], strict=True):
                assert call.status == 200, f"{path} {name} = {value!r:.60}: {call.body!r:.200}"
            for value, call in zip(bad, calls[len(good) :], strict=True):
                check_refusal(path, name, value, call)
        assert gateway.num_live == 0


def check_refusal(path: str, name: str, value: Any, call: Call) -> None:
    where = f"{path} {name} = {value!r:.60}: {call.body!r:.200}"
    assert (call.status, call.error["type"]) == (400, "invalid_request_error"), where
    if isinstance(value, float) and not math.isfinite(value):
        assert call.error["code"] == "invalid_json", where
    else:
        assert call.error["param"].split(".")[0] == name, where
        assert name in call.error["message"], where
