"""`n` answers to one prompt, as OpenAI's clients see them: by index, each with its own end, one usage."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.api.errors import ApiError
from cluster.generation import TextDelta
from tests.cluster.fakes import FakeGateway, Gate, say, settle

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    TEXT: {"model": "tiny", "prompt": "hello"},
}
MIXED = [
    TextDelta("c", sibling=2),
    TextDelta("a", sibling=0),
    *say("b", finish="length", sibling=1),
    *say("", "d", sibling=2),
    *say("e", sibling=0),
]
"""Seven tokens of three siblings, as a replica might make them."""
WHOLE = [("ae", "stop"), ("b", "length"), ("cd", "stop")]


@pytest.fixture
def mixed(gateway: FakeGateway) -> FakeGateway:
    gateway.generator.script = MIXED
    return gateway


def text_of(choice: dict[str, Any]) -> str:
    if "message" in choice:
        return str(choice["message"]["content"])
    return str(choice["delta"].get("content", "") if "delta" in choice else choice["text"])


@pytest.mark.parametrize("path", [CHAT, TEXT])
class TestOnBothEndpoints:
    async def test_choices_stand_by_index_and_usage_counts_the_prompt_once(
        self, mixed: FakeGateway, path: str
    ) -> None:
        body = (await mixed.post(path, BODIES[path] | {"n": 3})).json()
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert [(text_of(choice), choice["finish_reason"]) for choice in body["choices"]] == WHOLE
        assert body["usage"]["prompt_tokens"] == len(mixed.generator.last.prompt_token_ids)
        assert body["usage"]["completion_tokens"] == 6

    async def test_a_stream_says_them_as_they_come(self, mixed: FakeGateway, path: str) -> None:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *events, usage, done = (await mixed.post(path, BODIES[path] | {"n": 3} | options)).events
        assert done == "[DONE]"
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 6)
        choices = [event["choices"][0] for event in events]
        said = [(choice["index"], text_of(choice)) for choice in choices if text_of(choice)]
        assert said == [(2, "c"), (0, "a"), (1, "b"), (2, "d"), (0, "e")]
        ends = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"]]
        assert ends == [(1, "length"), (2, "stop"), (0, "stop")]
        assert all(event["usage"] is None for event in events)

    async def test_the_engine_is_asked_once(self, mixed: FakeGateway, path: str) -> None:
        await mixed.post(path, BODIES[path] | {"n": 3, "best_of": 3})
        (told,) = mixed.generator.requests
        assert told.n == 3

    async def test_one_that_fails_ends_them_all(self, gateway: FakeGateway, path: str) -> None:
        gateway.generator.script = [*say("a"), TextDelta("", "error", sibling=1)]
        call = await gateway.post(path, BODIES[path] | {"n": 2})
        assert (call.status, call.error["code"]) == (500, "generation_failed")
        call = await gateway.post(path, BODIES[path] | {"n": 2, "stream": True})
        assert [event for event in call.events if event == "[DONE]" or "error" in event] == [call.events[-1]]
        assert call.events[-1]["error"]["code"] == "generation_failed"
        assert [one.outcomes for one in gateway.generator.generations] == [["failed"], ["failed"]]

    async def test_deltas_that_end_before_all_have_are_an_error(
        self, gateway: FakeGateway, path: str
    ) -> None:
        gateway.generator.script = say("a")
        call = await gateway.post(path, BODIES[path] | {"n": 2})
        assert (call.status, call.error["code"]) == (500, "generation_failed")

    async def test_a_client_that_leaves_ends_them_all(self, gateway: FakeGateway, path: str) -> None:
        gateway.generator.script = [*say("a"), Gate()]
        for stream in (True, False):
            call = gateway.begin("POST", path, body=BODIES[path] | {"n": 2, "stream": stream})
            await settle()
            call.leave()
            await call.finished()
        assert [one.outcomes for one in gateway.generator.generations] == [["left"], ["left"]]

    async def test_a_replica_lost_between_two_ends_is_one_error_event(
        self, gateway: FakeGateway, path: str
    ) -> None:
        gateway.generator.script = [*say("a"), ApiError(500, "replica_lost", "Lost.")]
        events = (await gateway.post(path, BODIES[path] | {"n": 2, "stream": True})).events
        assert events[-1]["error"]["code"] == "replica_lost"
        assert sum(event == "[DONE]" or "error" in event for event in events) == 1


async def test_each_opens_with_its_role_before_its_first_text(mixed: FakeGateway) -> None:
    events = (await mixed.post(CHAT, BODIES[CHAT] | {"n": 3, "stream": True})).events[:-1]
    opened = [event["choices"][0]["index"] for event in events if "role" in event["choices"][0]["delta"]]
    assert opened == [2, 0, 1]
    first = {
        index: next(e["choices"][0] for e in events if e["choices"][0]["index"] == index)
        for index in range(3)
    }
    assert all(choice["delta"] == {"role": "assistant", "content": ""} for choice in first.values())


async def test_one_that_says_nothing_still_opens_and_ends(gateway: FakeGateway) -> None:
    gateway.generator.script = [*say("", sibling=1), *say("a")]
    events = (await gateway.post(CHAT, BODIES[CHAT] | {"n": 2, "stream": True})).events[:-1]
    silent = [event["choices"][0] for event in events if event["choices"][0]["index"] == 1]
    assert [choice["delta"] for choice in silent] == [{"role": "assistant", "content": ""}, {}]
    assert silent[1]["finish_reason"] == "stop"


class TestBounds:
    @pytest.mark.parametrize("n", [0, -1, 17, 128, 10**9, 2**70, True, "2", 2.0, [1]])
    async def test_a_bad_n_is_refused_before_anything_starts(self, gateway: FakeGateway, n: Any) -> None:
        for path in (CHAT, TEXT):
            call = await gateway.post(path, BODIES[path] | {"n": n, "stream": True})
            assert (call.status, call.error["param"]) == (400, "n")
        assert gateway.generator.requests == []

    async def test_more_than_a_replica_runs_at_once_is_refused_with_the_number(self) -> None:
        gateway = await FakeGateway(max_num_seqs=4).open()
        call = await gateway.post(TEXT, BODIES[TEXT] | {"n": 5})
        assert (call.status, call.error["param"]) == (400, "n")
        assert "at most 4" in call.error["message"]
        gateway.generator.script = [one for sibling in range(4) for one in say("a", sibling=sibling)]
        assert (await gateway.post(TEXT, BODIES[TEXT] | {"n": 4})).status == 200

    @pytest.mark.parametrize(("n", "best_of"), [(1, 2), (2, 1), (2, 3), (2, True), (1, 10**9), (1, "1")])
    async def test_best_of_is_only_another_word_for_n(
        self, gateway: FakeGateway, n: int, best_of: Any
    ) -> None:
        call = await gateway.post(TEXT, BODIES[TEXT] | {"n": n, "best_of": best_of})
        assert (call.status, call.error["param"]) == (400, "best_of")


class TestTimes:
    async def test_gaps_are_a_sibling_s_own_and_the_first_text_is_the_answer_s(
        self, gateway: FakeGateway
    ) -> None:
        first, second = Gate(), Gate()
        gateway.generator.script = [
            TextDelta("a"), first, TextDelta("b", sibling=1), second, *say("c"), *say("d", sibling=1)
        ]  # fmt: skip
        call = gateway.begin("POST", TEXT, body=BODIES[TEXT] | {"n": 2})
        await gateway.time.advance(1)
        first.open()
        await gateway.time.advance(2)
        second.open()
        await call.finished()
        assert self.sample(gateway, "time_to_first_token_seconds_count") == 1
        assert self.sample(gateway, "inter_token_latency_seconds_count") == 2
        assert self.sample(gateway, "inter_token_latency_seconds_sum") == 3 + 2
        assert self.sample(gateway, "e2e_request_latency_seconds_sum") == 3

    @staticmethod
    def sample(gateway: FakeGateway, name: str) -> float:
        samples = [
            sample.value
            for family in gateway.telemetry.registry.collect()
            for sample in family.samples
            if sample.name == f"headrace_{name}"
        ]
        return sum(samples)
