"""The generator: who gets a request, what its client reads, and what each way of losing a replica costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from msgspec import structs

from cluster.api.errors import ApiError
from cluster.cluster_generator import ClusterGeneration, ClusterGenerator
from cluster.generation import GenerationRequest, TextDelta, ToldToken, Usage
from cluster.link import Abort, LinkDown, SubmitReply
from engine.block_hash import hash_blocks, tenant_root
from engine.counters import EngineCounters
from engine.prefix_stats import PrefixStats
from engine.request import RequestOutput, SamplingParams, Timing, TokenLogprobs
from tenants.tenant import cache_salt
from tests.builders_tenants import SECRET, a_tenant
from tests.cluster.fake_replica import Admitted, FakeReplica, LinkRig, row, settle

PROMPT = tuple(range(40))  # two full blocks of 16
BUSY = EngineCounters(1, 0, 1000, 100, 0, 0, 0.0, 0, 0, 0)
TIMING = Timing(0.1, 0.2, 0.3, 0.0, 0)
LOOKUP = PrefixStats(hit_tokens=32, below_block_tokens=8)


class Rig(LinkRig):
    """A generator over fake replicas; a token's text is the character of its id."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admitted()
        self.generator = ClusterGenerator(
            self.links,
            self.admission,
            lambda token_id: chr(token_id).encode(),
            SECRET,
            Random(0),
            self._discard,
        )

    async def open(self, *replica_ids: str) -> Rig:
        self.links.set_replicas(frozenset(replica_ids))
        await settle()
        return self

    async def start(self, request_id: str = "r", **fields: Any) -> ClusterGeneration:
        defaults: dict[str, Any] = {
            "tenant": a_tenant(),
            "prompt_token_ids": PROMPT,
            "sampling": SamplingParams(max_tokens=8),
            "deadline": 60.0,
        }
        return await self.generator.start(GenerationRequest(request_id=request_id, **(defaults | fields)))

    def of(self, generation: ClusterGeneration) -> FakeReplica:
        """The replica that serves it."""
        return self.replicas[generation.replica_id]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.links.close()


def tokens(
    text: str, first: int = 0, *, sibling: int = 0, finish: str | None = None, **fields: Any
) -> RequestOutput:
    ids = tuple(map(ord, text))
    return RequestOutput("r", 0, sibling, first, ids, finish_reason=finish, **fields)  # type: ignore[arg-type]


async def read(generation: ClusterGeneration) -> list[TextDelta]:
    return [delta async for delta in generation.deltas()]


async def refused(rig: Rig, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await rig.start(**fields)
    return caught.value


class TestAnAnswer:
    async def test_is_the_replica_s_tokens_as_text_to_the_finish(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start()
        rig.replicas["a"].say(tokens("H"), tokens("ead", 1))
        rig.replicas["a"].say(tokens("!", 4, finish="length"))
        assert await read(generation) == [TextDelta("H"), TextDelta("ead"), TextDelta("!", "length")]

    async def test_is_counted_exactly(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start()
        assert generation.usage == Usage(40, 0, 0)
        rig.replicas["a"].say(tokens("ab", num_cached_tokens=32, lookup=LOOKUP))
        rig.replicas["a"].say(tokens("c", 2, finish="stop", timing=TIMING))
        await read(generation)
        assert generation.usage == Usage(40, completion_tokens=3, cached_tokens=32, lookup=LOOKUP)
        assert generation.timing == TIMING

    async def test_holds_half_a_character_back_and_shows_it_at_the_end(self, rig: Rig) -> None:
        await rig.open("a")
        rig.generator._token_bytes = lambda token_id: bytes([token_id])
        generation = await rig.start()
        rig.replicas["a"].say(row("r", 0, 0xC3), row("r", 1, 0xA4), row("r", 2, 0xC3, finish="length"))
        assert [delta.text for delta in await read(generation)] == ["", "ä", "\N{REPLACEMENT CHARACTER}"]

    @pytest.mark.parametrize(("code", "shown"), [("engine_error", "engine_error"), (None, "aborted")])
    @pytest.mark.parametrize("finish", ["error", "abort"])
    async def test_that_the_engine_gave_up_is_an_error(
        self, rig: Rig, finish: str, code: str | None, shown: str
    ) -> None:
        await rig.open("a")
        generation = await rig.start()
        rig.replicas["a"].say(tokens("", finish=finish, error_code=code))
        with pytest.raises(ApiError) as caught:
            await read(generation)
        assert (caught.value.status, caught.value.code) == (500, shown)


class TestAStopString:
    async def test_ends_the_text_aborts_the_rest_and_is_the_last_token_counted(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(stop=("END",))
        rig.replicas["a"].say(tokens("okEN"), tokens("Dxy", 4))
        assert await read(generation) == [TextDelta("ok"), TextDelta("", "stop")]
        await settle()
        assert rig.replicas["a"].aborted == [Abort("r", 0)]
        assert generation.usage.completion_tokens == 5
        assert rig.discarded == 2

    async def test_discards_what_arrived_and_was_not_read(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(stop=("E",))
        rig.replicas["a"].say(tokens("E"))
        rig.replicas["a"].say(tokens("xyz", 1))
        await settle()
        await read(generation)
        assert rig.discarded == 3

    async def test_discards_what_arrives_later(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(stop=("E",))
        rig.replicas["a"].say(tokens("E"))
        await read(generation)
        rig.replicas["a"].say(tokens("xyz", 1, finish="abort"))
        await settle()
        assert rig.discarded == 3

    async def test_in_the_last_output_has_nothing_to_abort(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(stop=("E",))
        rig.replicas["a"].say(tokens("aE", finish="length"))
        assert await read(generation) == [TextDelta("a", "stop")]
        await settle()
        assert rig.replicas["a"].aborted == []

    async def test_that_was_only_begun_is_text(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(stop=("END",))
        rig.replicas["a"].say(tokens("aEN"), tokens("x", 3, finish="length"))
        assert await read(generation) == [TextDelta("a"), TextDelta("ENx", "length")]

    async def test_that_only_the_flushed_end_completes_is_a_stop(self, rig: Rig) -> None:
        """Half a character at the end becomes U+FFFD, which a stop string may hold."""
        await rig.open("a")
        rig.generator._token_bytes = lambda token_id: bytes([token_id])
        generation = await rig.start(stop=("\N{REPLACEMENT CHARACTER}",))
        rig.replicas["a"].say(row("r", 0, 0x61), row("r", 1, 0xC3, finish="length"))
        assert await read(generation) == [TextDelta("a"), TextDelta("", "stop")]


class TestSiblings:
    async def test_are_one_request_and_their_deltas_come_as_they_were_made(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(n=3)
        (sent,) = rig.replicas["a"].submitted
        assert (sent.n, sent.sibling) == (3, 0)
        rig.replicas["a"].say(tokens("a"), tokens("b", sibling=1), tokens("c", sibling=2))
        rig.replicas["a"].say(tokens("x", 1, sibling=2, finish="stop"), tokens("y", 1, finish="length"))
        rig.replicas["a"].say(tokens("z", 1, sibling=1, finish="length"))
        assert await read(generation) == [
            TextDelta("a", sibling=0),
            TextDelta("b", sibling=1),
            TextDelta("c", sibling=2),
            TextDelta("x", "stop", sibling=2),
            TextDelta("y", "length", sibling=0),
            TextDelta("z", "length", sibling=1),
        ]

    async def test_count_the_prompt_once_and_each_token(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(n=2)
        rig.replicas["a"].say(
            tokens("abc", num_cached_tokens=32, lookup=LOOKUP), tokens("de", sibling=1, num_cached_tokens=0)
        )
        rig.replicas["a"].say(
            tokens("", 3, finish="stop"), tokens("", 2, sibling=1, finish="stop", timing=TIMING)
        )
        await read(generation)
        assert generation.usage == Usage(40, completion_tokens=5, cached_tokens=32, lookup=LOOKUP)
        assert generation.timing == TIMING

    async def test_hold_back_text_of_their_own(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(n=2, stop=("END",))
        rig.replicas["a"].say(tokens("aE"), tokens("N", sibling=1), tokens("N", 2), tokens("D", 1, sibling=1))
        rig.replicas["a"].say(tokens("", 2, sibling=1, finish="length"), tokens("", 3, finish="length"))
        texts = {0: "", 1: ""}
        for delta in await read(generation):
            texts[delta.sibling] += delta.text
        assert texts == {0: "aEN", 1: "ND"}

    async def test_that_complete_a_stop_string_end_alone(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(n=3, stop=("E",))
        rig.replicas["a"].say(tokens("a"), tokens("Exy", sibling=1), tokens("c", sibling=2))
        rig.replicas["a"].say(tokens("b", 1), tokens("zz", 3, sibling=1), tokens("d", 1, sibling=2))
        await settle()
        deltas = generation.deltas()
        assert [(await anext(deltas)).text for _ in range(5)] == ["a", "", "c", "b", "d"]
        await settle()
        assert rig.replicas["a"].aborted == [Abort("r", 1)]
        assert rig.discarded == 4
        rig.replicas["a"].say(tokens("", 5, sibling=1, finish="abort"))  # what the abort came to
        rig.replicas["a"].say(tokens("", 2, finish="stop"), tokens("E", 2, sibling=2))
        assert [(delta.sibling, delta.finish_reason) async for delta in deltas] == [(0, "stop"), (2, "stop")]
        assert generation.usage.completion_tokens == 2 + 1 + 3

    async def test_end_together_when_one_of_them_fails(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(n=2)
        rig.replicas["a"].say(
            tokens("a"), tokens("", sibling=1, finish="error", error_code="non_finite_logits")
        )
        with pytest.raises(ApiError) as caught:
            await read(generation)
        assert (caught.value.status, caught.value.code) == (500, "non_finite_logits")
        await generation.abort()
        await settle()
        assert rig.replicas["a"].aborted == [Abort("r")]

    async def test_are_all_lost_with_their_replica(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(n=2)
        rig.replicas["a"].say(tokens("a", finish="stop"))
        rig.replicas["a"].die()
        with pytest.raises(ApiError) as caught:
            await read(generation)
        assert caught.value.code == "replica_lost"


class TestLogprobs:
    @staticmethod
    def told(text: str, first: int = 0, **fields: Any) -> RequestOutput:
        """Token number i has the logprob -i."""
        logprobs = tuple(TokenLogprobs(-float(first + i)) for i in range(len(text)))
        return tokens(text, first, logprobs=logprobs, **fields)

    @staticmethod
    def heard(deltas: list[TextDelta]) -> list[tuple[str, list[float]]]:
        return [(delta.text, [token.logprobs.logprob for token in delta.tokens]) for delta in deltas]

    async def test_come_with_the_text_of_their_token(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start()
        rig.replicas["a"].say(self.told("H"), self.told("ead", 1, finish="length"))
        first, second = await read(generation)
        assert first.tokens == (ToldToken(ord("H"), 0, TokenLogprobs(-0.0)),)
        assert [(token.token_id, token.text_offset) for token in second.tokens] == [
            (ord("e"), 1),
            (ord("a"), 2),
            (ord("d"), 3),
        ]

    async def test_wait_with_text_that_is_held(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(stop=("END",))
        rig.replicas["a"].say(self.told("aE"), self.told("N", 2), self.told("x", 3), self.told("EN", 4))
        rig.replicas["a"].say(self.told("", 6, finish="length"))
        assert self.heard(await read(generation)) == [
            ("a", [0.0]),
            ("", []),
            ("ENx", [-1.0, -2.0, -3.0]),
            ("", []),
            ("EN", [-4.0, -5.0]),
        ]

    async def test_of_half_a_character_wait_for_the_other(self, rig: Rig) -> None:
        await rig.open("a")
        rig.generator._token_bytes = lambda token_id: bytes([token_id])
        generation = await rig.start()
        rows = [row("r", at, byte) for at, byte in enumerate([0x61, 0xC3, 0xA4, 0xC3])]
        for at, one in enumerate(rows):
            rig.replicas["a"].say(structs.replace(one, logprobs=(TokenLogprobs(-float(at)),)))
        rig.replicas["a"].say(row("r", 4, finish="length"))
        deltas = await read(generation)
        assert self.heard(deltas) == [
            ("a", [0.0]),
            ("", []),
            ("ä", [-1.0, -2.0]),
            ("", []),
            ("\ufffd", [-3.0]),
        ]
        assert [token.text_offset for delta in deltas for token in delta.tokens] == [0, 1, 1, 2]

    async def test_are_those_of_all_counted_tokens_where_a_stop_string_cuts(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(stop=("END",))
        rig.replicas["a"].say(self.told("aE"), self.told("NDxy", 2))
        assert self.heard(await read(generation)) == [("a", [0.0]), ("", [-1.0, -2.0, -3.0])]
        assert generation.usage.completion_tokens == 4

    async def test_of_a_token_without_text_come_at_once(self, rig: Rig) -> None:
        await rig.open("a")
        rig.generator._token_bytes = lambda token_id: b"" if token_id == ord("_") else bytes([token_id])
        generation = await rig.start()
        rig.replicas["a"].say(self.told("_"), self.told("a", 1), self.told("_", 2, finish="stop"))
        assert self.heard(await read(generation)) == [("", [0.0]), ("a", [-1.0]), ("", [-2.0])]

    async def test_are_a_sibling_s_own(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(n=2, stop=("END",))
        rig.replicas["a"].say(self.told("E"), self.told("ab", sibling=1))
        rig.replicas["a"].say(
            self.told("x", 1, finish="length"), self.told("c", 2, sibling=1, finish="length")
        )
        assert self.heard(await read(generation)) == [
            ("", []),
            ("ab", [0.0, -1.0]),
            ("Ex", [0.0, -1.0]),
            ("c", [-2.0]),
        ]


class TestALostReplica:
    async def test_in_the_middle_of_an_answer_is_an_error_after_what_came(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start()
        rig.replicas["a"].say(tokens("ab"))
        rig.replicas["a"].die()
        deltas = generation.deltas()
        assert await anext(deltas) == TextDelta("ab")
        with pytest.raises(ApiError) as caught:
            await anext(deltas)
        assert (caught.value.status, caught.value.code) == (500, "replica_lost")
        assert generation.usage.completion_tokens == 2

    async def test_at_the_submit_sends_the_request_to_another(self, rig: Rig) -> None:
        """The lost one has the least load all the while, so load alone would choose it again."""
        await rig.open("a", "b")
        rig.replicas["b"].say(counters=BUSY)
        await settle()
        rig.replicas["a"].reply = LinkDown("gone")
        generation = await rig.start()
        assert generation.replica_id == "b"
        assert [len(rig.replicas[name].submitted) for name in ("a", "b")] == [1, 1]
        assert rig.replicas["b"].submitted[0].attempt == 1
        rig.replicas["b"].say(tokens("x", finish="stop"))
        assert await read(generation) == [TextDelta("x", "stop")]

    async def test_that_may_have_taken_the_request_is_told_to_drop_it(self, rig: Rig) -> None:
        await rig.open("a", "b")
        rig.replicas["b"].say(counters=BUSY)
        await settle()
        rig.replicas["a"].reply = LinkDown("timed out")
        await rig.start()
        await settle()
        assert (rig.replicas["a"].aborted, rig.replicas["b"].aborted) == ([Abort("r")], [])

    async def test_all_of_them_is_503_worth_a_retry(self, rig: Rig) -> None:
        await rig.open("a", "b")
        for replica in rig.replicas.values():
            replica.reply = LinkDown("gone")
        error = await refused(rig)
        assert (error.status, error.code, error.retry_after_s) == (503, "no_capacity", 1.0)
        assert [len(replica.submitted) for replica in rig.replicas.values()] == [1, 1]

    async def test_is_given_up_after_three(self, rig: Rig) -> None:
        await rig.open("a", "b", "c", "d")
        for replica in rig.replicas.values():
            replica.reply = LinkDown("gone")
        assert (await refused(rig)).code == "no_capacity"
        assert sum(len(replica.submitted) for replica in rig.replicas.values()) == 3

    async def test_none_at_all_is_503_worth_a_retry(self, rig: Rig) -> None:
        error = await refused(rig)
        assert (error.status, error.code, error.retry_after_s) == (503, "no_capacity", 1.0)


class TestARefusal:
    async def test_of_the_replica_is_the_client_s_fault_with_its_code(self, rig: Rig) -> None:
        await rig.open("a")
        rig.replicas["a"].reply = SubmitReply(False, "limit_never_satisfiable", "needs 900 slots")
        error = await refused(rig)
        assert (error.status, error.code) == (400, "limit_never_satisfiable")
        assert (error.message, error.param) == ("needs 900 slots", "max_tokens")
        assert len(rig.replicas["a"].submitted) == 1

    async def test_at_the_door_reaches_no_replica(self, rig: Rig) -> None:
        await rig.open("a")
        rig.admission.refusal = ApiError(403, "tenant_disabled", "no")
        assert await refused(rig) is rig.admission.refusal
        assert rig.replicas["a"].submitted == []


class TestBlockHashes:
    async def test_start_from_the_hello_s_root_and_the_tenant_s_salt(self, rig: Rig) -> None:
        await rig.open("a")
        await rig.start(tenant=a_tenant("acme"))
        (sent,) = rig.replicas["a"].submitted
        root = tenant_root(b"root", cache_salt(SECRET, "acme"))
        assert sent.hash_root == root
        assert sent.block_hashes == hash_blocks(root, PROMPT, 16)
        assert len(sent.block_hashes) == 2

    async def test_are_a_tenant_s_own(self, rig: Rig) -> None:
        await rig.open("a")
        for number, name in enumerate(("acme", "acme", "other")):
            await rig.start(f"r{number}", tenant=a_tenant(name))
        first, again, others = rig.replicas["a"].submitted
        assert first.block_hashes == again.block_hashes
        assert set(first.block_hashes).isdisjoint(others.block_hashes)

    async def test_follow_the_revision_of_the_replica_that_is_tried(self, rig: Rig) -> None:
        rig.replica("b").hash_root = b"another revision"
        await rig.open("a", "b")
        for replica in rig.replicas.values():
            replica.reply = LinkDown("gone")
        await refused(rig)
        salt = cache_salt(SECRET, "acme")
        assert {replica.submitted[0].hash_root for replica in rig.replicas.values()} == {
            tenant_root(b"root", salt),
            tenant_root(b"another revision", salt),
        }


async def test_requests_spread_over_replicas_by_what_was_routed(rig: Rig) -> None:
    await rig.open("a", "b")
    first, second = await rig.start("r1"), await rig.start("r2")
    assert {first.replica_id, second.replica_id} == {"a", "b"}


async def test_a_client_that_left_aborts_once_and_its_unread_tokens_are_counted(rig: Rig) -> None:
    await rig.open("a")
    generation = await rig.start()
    rig.replicas["a"].say(tokens("ab"))
    await settle()
    await generation.abort()
    await generation.abort()
    await settle()
    assert rig.replicas["a"].aborted == [Abort("r")]
    assert rig.discarded == 2


async def test_a_client_that_left_before_the_reply_leaves_nothing(rig: Rig) -> None:
    await rig.open("a")
    rig.replicas["a"].reply = asyncio.Event()
    task = asyncio.ensure_future(rig.start())
    await settle()
    task.cancel()
    await settle()
    assert rig.replicas["a"].aborted == [Abort("r")]
    assert rig.links.candidates()[0].in_flight_tokens == 0
