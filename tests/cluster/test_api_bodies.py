"""What a body may hold: everything else is a 400 that names the field, at once, and starts nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.api.errors import ApiError
from cluster.api.pace import Timings
from cluster.api.strict_json import parse_object
from engine.chat_template import TemplateError
from tests.cluster.fakes import Call, FakeGateway

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MIB = 2**20
USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [USER], **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hello", **fields}


async def refused(gateway: FakeGateway, path: str, body: Any, **request: Any) -> Any:
    """The error of a 400; the engine has heard of nothing."""
    call = await gateway.post(path, body, **request)
    assert (call.status, call.error["type"]) == (400, "invalid_request_error")
    assert gateway.generator.requests == []
    return call.error


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"include_usage": 1}, "stream_options.include_usage"),
        ({"other": True}, "stream_options.other"),
        ([], "stream_options"),
    ],
)
async def test_bad_stream_options_are_named(gateway: FakeGateway, options: Any, param: str) -> None:
    error = await refused(gateway, CHAT, chat(stream=True, stream_options=options))
    assert error["param"] == param


class TestMessages:
    @pytest.mark.parametrize(
        ("messages", "param"),
        [
            ([], "messages"),
            ({}, "messages"),
            ("hi", "messages"),
            (None, "messages"),
            (["hi"], "messages.0"),
            ([USER, None], "messages.1"),
            ([{"content": "hi"}], "messages.0.role"),
            ([{"role": "User", "content": "hi"}], "messages.0.role"),
            ([{"role": "user"}], "messages.0.content"),
            ([{"role": "user", "content": None}], "messages.0.content"),
            ([{"role": "user", "content": ""}], "messages.0.content"),
            ([{"role": "user", "content": []}], "messages.0.content"),
            ([{"role": "user", "content": [{"type": "text", "text": ""}]}], "messages.0.content"),
            ([{"role": "user", "content": 5}], "messages.0.content"),
            ([{"role": "user", "content": ["hi"]}], "messages.0.content"),
            ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content"),
            ([{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}], "messages.0.content"),
            (
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                "messages.0.content",
            ),
            ([USER, {"role": "user", "content": "a", "name": ""}], "messages.1.name"),
            ([{"role": "user", "content": "a", "name": "x" * 65}], "messages.0.name"),
            ([{"role": "user", "content": "a", "colour": "red"}], "messages.0.colour"),
            ([{"role": "assistant", "content": "a", "tool_calls": [{}]}], "messages.0.tool_calls"),
        ],
    )
    async def test_a_bad_member_is_named(self, gateway: FakeGateway, messages: Any, param: str) -> None:
        assert (await refused(gateway, CHAT, chat(messages=messages)))["param"] == param

    async def test_what_an_assistant_said_can_be_sent_back_as_clients_hold_it(
        self, gateway: FakeGateway
    ) -> None:
        said = {"role": "assistant", "content": "a", "refusal": None, "annotations": [], "tool_calls": None}
        said |= {"audio": None, "function_call": None}
        assert (await gateway.post(CHAT, chat(messages=[USER, said, USER]))).status == 200

    @pytest.mark.parametrize("role", ["system", "developer", "assistant"])
    async def test_only_who_asks_must_say_something(self, gateway: FakeGateway, role: str) -> None:
        assert (await gateway.post(CHAT, chat(messages=[{"role": role, "content": ""}, USER]))).status == 200

    async def test_what_a_template_refuses_is_a_400(self, gateway: FakeGateway) -> None:
        class Refusing:
            def encode(self, messages: Any) -> tuple[int, ...]:
                raise TemplateError("roles must alternate")

        other = await FakeGateway(chat_template=Refusing()).open()
        error = await refused(other, CHAT, chat())
        assert error["param"] == "messages"
        assert "roles must alternate" in error["message"]


class TestPrompt:
    @pytest.mark.parametrize(
        "prompt",
        [
            *[
                "",
                [],
                [""],
                [[]],
                None,
                5,
                {},
                [None],
                [1.0],
                [True],
                [1, "a"],
                ["a", "b"],
                [[1], [2]],
                [["a"]],
            ],
            *[[-1], [259], [2**70], [[1, -1]], [[[1]]]],
        ],
    )
    async def test_a_bad_one_is_named(self, gateway: FakeGateway, prompt: Any) -> None:
        assert (await refused(gateway, TEXT, text(prompt=prompt)))["param"] == "prompt"

    async def test_a_blank_is_a_prompt(self, gateway: FakeGateway) -> None:
        assert (await gateway.post(TEXT, text(prompt=" "))).status == 200


class TestOtherFields:
    @pytest.mark.parametrize(
        ("field", "neutral", "asking"),
        [
            ("response_format", {"type": "text"}, [{"type": "json_object"}, {}]),
            ("tools", [], [[{"type": "function"}], {}]),
            ("tool_choice", "auto", ["required"]),
            ("echo", False, [True, 0]),
            ("suffix", "", ["x"]),
        ],
    )
    async def test_one_that_is_not_there_yet_may_only_ask_for_nothing(
        self, gateway: FakeGateway, field: str, neutral: Any, asking: list[Any]
    ) -> None:
        for value in asking:
            error = await refused(gateway, CHAT, chat(**{field: value}))
            assert (error["param"], error["code"]) == (field, "unsupported_parameter")
        assert (await gateway.post(CHAT, chat(**{field: neutral}))).status == 200

    async def test_top_logprobs_of_a_completion_are_asked_for_by_logprobs(self, gateway: FakeGateway) -> None:
        error = await refused(gateway, TEXT, text(logprobs=2, top_logprobs=2))
        assert (error["param"], error["code"]) == ("top_logprobs", "unsupported_parameter")
        assert (await gateway.post(TEXT, text(logprobs=2, top_logprobs=0))).status == 200

    async def test_a_harmless_one_is_ignored(self, gateway: FakeGateway) -> None:
        harmless = {
            "store": True,
            "metadata": {"a": "b"},
            "service_tier": "auto",
            "parallel_tool_calls": True,
        }
        assert (await gateway.post(CHAT, chat(**harmless))).status == 200

    @pytest.mark.parametrize("value", [1, None])
    async def test_an_unknown_one_is_named(self, gateway: FakeGateway, value: Any) -> None:
        for path, body in ((CHAT, chat(temprature=value)), (TEXT, text(temprature=value))):
            error = await refused(gateway, path, body)
            assert (error["param"], error["code"]) == ("temprature", "unknown_parameter")

    async def test_the_other_endpoints_field_is_unknown(self, gateway: FakeGateway) -> None:
        assert (await refused(gateway, CHAT, chat(prompt="a")))["param"] == "prompt"
        assert (await refused(gateway, TEXT, text(messages=[USER])))["param"] == "messages"

    @pytest.mark.parametrize("field", ["model", "messages"])
    async def test_a_missing_one_is_named(self, gateway: FakeGateway, field: str) -> None:
        body = {name: value for name, value in chat().items() if name != field}
        error = await refused(gateway, CHAT, body)
        assert (error["param"], error["code"]) == (field, "missing_required_parameter")


def nested(depth: int, inner: str = "1") -> str:
    return "[" * depth + inner + "]" * depth


NOT_JSON: dict[str, bytes] = {
    "nothing": b"",
    "a word": b"hello",
    "half": b'{"model": "tiny"',
    "two values": b"{} {}",
    "a list": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "a comment": b"{} // x",
    "single quotes": b"{'model': 'tiny'}",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"model": "tiny"}'.encode("utf-16"),
    "bad UTF-8": b'{"model": "\xff"}',
    "a surrogate as bytes": b'{"model": "\xed\xa0\x80"}',
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "a float beyond all": b'{"temperature": 1e999}',
    "an integer of 5000 digits": b'{"seed": ' + b"1" * 5000 + b"}",
    "a lone surrogate": b'{"model": "\\ud800"}',
    "a lone surrogate in a name": b'{"\\udc00": 1}',
    "a duplicate key": b'{"model": "a", "model": "tiny"}',
    "a duplicate key inside": b'{"metadata": {"a": 1, "a": 2}}',
    "a raw control character": b'{"model": "a\nb"}',
    "65 levels": b'{"metadata": ' + nested(64).encode() + b"}",
    "250 levels in an ignored field": b'{"metadata": ' + nested(250).encode() + b"}",
    "250 levels in tools": b'{"tools": ' + nested(250).encode() + b"}",
    "a float beyond all, spelt out": b'{"temperature": ' + b"9" * 310 + b".0}",
    "a float beyond all, in an ignored field": b'{"metadata": 1E+0400}',
    "1000 lists": nested(1000).encode(),
    "100000 lists": nested(100_000).encode(),
    "4 MiB of openings": b"[" * (4 * 2**20),
    "100000 objects": b'{"a":' * 100_000,
}

TOO_MUCH: dict[str, bytes] = {
    "lists": b'{"metadata": [' + b",".join([b"[]"] * 2**16) + b"]}",
    "objects": b'{"metadata": [' + b",".join([b"{}"] * 2**16) + b"]}",
    "lists in lists": b'{"metadata": [' + b",".join([b"[[],[]]"] * 2**15) + b"]}",
    "floats": b'{"metadata": [' + b",".join([b"1.5"] * 2**16) + b",1.5]}",
}


class TestJson:
    @pytest.mark.parametrize("kind", NOT_JSON)
    async def test_what_is_not_plain_json_is_refused_at_once(self, gateway: FakeGateway, kind: str) -> None:
        began = time.process_time()
        error = await refused(gateway, CHAT, NOT_JSON[kind])
        assert time.process_time() - began < 0.05
        assert error["code"] == "invalid_json"

    @pytest.mark.parametrize("kind", TOO_MUCH)
    async def test_more_parts_than_any_request_needs_are_refused(
        self, gateway: FakeGateway, kind: str
    ) -> None:
        error = await refused(gateway, CHAT, TOO_MUCH[kind])
        assert f"more than {2**16} lists, objects or floats" in error["message"]

    def test_a_key_that_is_there_twice_is_named(self) -> None:
        with pytest.raises(ApiError) as refusal:
            parse_object(b'{"max_tokens": 1, "max_tokens": 2}')
        assert refusal.value.message == "The key 'max_tokens' appears twice."

    def test_a_byte_order_mark_is_called_by_its_name(self) -> None:
        with pytest.raises(ApiError, match="byte order mark"):
            parse_object(b"\xef\xbb\xbf{}")

    def test_64_levels_and_pairs_of_surrogates_are_fine(self) -> None:
        assert parse_object(b'{"a": ' + nested(63).encode() + b"}")
        assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}

    def test_brackets_in_text_are_no_levels(self) -> None:
        assert parse_object(json.dumps({"a": "[" * 1000}).encode()) == {"a": "[" * 1000}

    def test_an_error_quotes_no_values(self) -> None:
        with pytest.raises(ApiError) as caught:
            parse_object(b'{"prompt": "secret", "prompt": "secret"}')
        assert "secret" not in caught.value.message
        assert "'prompt'" in caught.value.message

    values = st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    )

    @given(st.dictionaries(st.text(), values, max_size=5), st.booleans())
    def test_any_json_object_is_read_as_it_is(self, value: dict[str, Any], ensure_ascii: bool) -> None:
        assert parse_object(json.dumps(value, ensure_ascii=ensure_ascii).encode()) == value

    @pytest.mark.parametrize(
        "header",
        [
            *[{"content-type": "text/plain"}, {"content-type": ""}, {"content-encoding": "gzip"}],
            *[{"content-type": "application/json; charset=latin-1"}, {"content-type": "application/jsonp"}],
        ],
    )
    async def test_nothing_but_json_is_read(self, gateway: FakeGateway, header: dict[str, str]) -> None:
        error = await refused(gateway, CHAT, chat(), headers=header)
        assert (error["param"], error["code"]) == (next(iter(header)), "invalid_content_type")

    @pytest.mark.parametrize("value", ["application/json; charset=utf-8", "Application/JSON;charset=UTF8"])
    async def test_utf8_may_be_said(self, gateway: FakeGateway, value: str) -> None:
        assert (await gateway.post(CHAT, chat(), headers={"content-type": value})).status == 200


class TestSize:
    LIMIT = Timings().max_body_bytes

    async def test_one_too_large_is_dropped_as_it_comes_and_the_connection_lives(
        self, gateway: FakeGateway
    ) -> None:
        for claim in ({"content-length": str(5 * MIB)}, {"content-length": "5"}, {}):
            call = await gateway.begin("POST", CHAT, chunks=[b" " * MIB] * 5, headers=claim).finished()
            assert (call.status, call.error["code"]) == (413, "body_too_large")
            assert "connection" not in call.headers

    async def test_one_without_end_is_cut_off(self, gateway: FakeGateway) -> None:
        call = gateway.begin("POST", CHAT, chunks=[b" " * MIB] * 100)
        assert_cut_off(await call.finished())
        assert call.num_unread == 100 - 17

    @pytest.mark.parametrize(
        "headers",
        [{"content-length": "9" * 5000}, {"content-length": str(5 * MIB), "expect": "100-continue"}],
    )
    async def test_one_that_need_not_come_is_not_read(
        self, gateway: FakeGateway, headers: dict[str, str]
    ) -> None:
        call = gateway.begin("POST", CHAT, chunks=[b" " * MIB] * 5, headers=headers)
        assert_cut_off(await call.finished())
        assert call.num_unread == 5

    async def test_a_large_one_that_stops_coming_is_not_waited_for(self, gateway: FakeGateway) -> None:
        call = gateway.begin("POST", CHAT, chunks=[b" " * MIB] * 5, is_body_complete=False)
        await gateway.time.advance(30)
        assert (await call.finished()).status == 408

    async def test_a_body_of_exactly_the_limit_is_read(self, gateway: FakeGateway) -> None:
        body = json.dumps(text()).encode()
        padded = body + b" " * (self.LIMIT - len(body))
        call = await gateway.post(TEXT, padded, headers={"content-length": str(self.LIMIT)})
        assert call.status == 200

    async def test_a_body_that_does_not_come_is_not_waited_for(self, gateway: FakeGateway) -> None:
        call = gateway.begin("POST", CHAT, chunks=[b"{", b" "], is_body_complete=False)
        await gateway.time.advance(29.9)
        assert not call.task.done()
        await gateway.time.advance(0.1)
        await call.finished()
        assert (call.status, call.error["code"]) == (408, "body_timeout")
        assert call.headers["connection"] == "close"


def assert_cut_off(call: Call) -> None:
    assert (call.status, call.error["code"]) == (413, "body_too_large")
    assert call.headers["connection"] == "close"
