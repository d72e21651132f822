"""What a client reads: deltas, stop strings, siblings, log-probabilities, and usage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs

from cluster.api.errors import ApiError
from cluster.cluster_generation import ClusterGeneration
from cluster.generation import TextDelta, ToldToken, Usage
from cluster.link import Abort
from engine.prefix_stats import PrefixStats
from engine.request import RequestOutput, Timing, TokenLogprobs
from tests.cluster.fake_replica import row, settle
from tests.cluster.generator_rig import Rig, read, tokens

TIMING = Timing(0.1, 0.2, 0.3, 0.0, 0)
LOOKUP = PrefixStats(hit_tokens=32, below_block_tokens=8)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.links.close()


async def read_each(rig: Rig, generation: ClusterGeneration, *outputs: RequestOutput) -> list[TextDelta]:
    """What replica a's outputs come to for a reader who keeps up. The last one ends the answer."""
    deltas = generation.deltas()
    read = []
    for output in outputs:
        rig.replicas["a"].say(output)
        read.append(await anext(deltas))
    assert [delta async for delta in deltas] == []
    return read


class TestAnAnswer:
    async def test_is_the_replica_s_tokens_as_text_to_the_finish(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start()
        rows = (tokens("H"), tokens("ead", 1), tokens("!", 4, finish="length"))
        assert await read_each(rig, generation, *rows) == [
            TextDelta("H"),
            TextDelta("ead"),
            TextDelta("!", "length"),
        ]

    async def test_comes_in_one_piece_to_a_reader_who_is_behind(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start()
        rig.replicas["a"].say(tokens("H"), tokens("ead", 1))
        rig.replicas["a"].say(tokens("!", 4, finish="length"))
        await settle()
        assert await read(generation) == [TextDelta("Head!", "length")]

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
        rows = (row("r-0", 0, 0xC3), row("r-0", 1, 0xA4), row("r-0", 2, 0xC3, finish="length"))
        deltas = await read_each(rig, generation, *rows)
        assert [delta.text for delta in deltas] == ["", "ä", "\N{REPLACEMENT CHARACTER}"]

    @pytest.mark.parametrize(("code", "shown"), [("non_finite_logits",) * 2, (None, "aborted")])
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
        rows = (tokens("okEN"), tokens("Dxy", 4))
        assert await read_each(rig, generation, *rows) == [TextDelta("ok"), TextDelta("", "stop")]
        await settle()
        assert rig.replicas["a"].aborted == [Abort("r-0", 0)]
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
        rows = (tokens("aEN"), tokens("x", 3, finish="length"))
        assert await read_each(rig, generation, *rows) == [TextDelta("a"), TextDelta("ENx", "length")]

    async def test_that_only_the_flushed_end_completes_is_a_stop(self, rig: Rig) -> None:
        """Half a character at the end becomes U+FFFD, which a stop string may hold."""
        await rig.open("a")
        rig.generator._token_bytes = lambda token_id: bytes([token_id])
        generation = await rig.start(stop=("\N{REPLACEMENT CHARACTER}",))
        rows = (row("r-0", 0, 0x61), row("r-0", 1, 0xC3, finish="length"))
        assert await read_each(rig, generation, *rows) == [TextDelta("a"), TextDelta("", "stop")]


class TestSiblings:
    async def test_are_one_request_and_their_deltas_come_as_they_were_made(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(n=3)
        (sent,) = rig.replicas["a"].submitted
        assert (sent.n, sent.sibling) == (3, 0)
        first = (tokens("a"), tokens("b", sibling=1), tokens("c", sibling=2))
        then = (tokens("x", 1, sibling=2, finish="stop"), tokens("y", 1, finish="length"))
        last = tokens("z", 1, sibling=1, finish="length")
        assert await read_each(rig, generation, *first, *then, last) == [
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
        assert [(await anext(deltas)).text for _ in range(3)] == ["ab", "", "cd"]
        await settle()
        assert rig.replicas["a"].aborted == [Abort("r-0", 1)]
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
        generation.end("left")
        await settle()
        assert rig.replicas["a"].aborted == [Abort("r-0")]


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
        rows = (self.told("H"), self.told("ead", 1, finish="length"))
        first, second = await read_each(rig, generation, *rows)
        assert first.tokens == (ToldToken(ord("H"), 0, TokenLogprobs(-0.0)),)
        assert [(token.token_id, token.text_offset) for token in second.tokens] == [
            (ord("e"), 1),
            (ord("a"), 2),
            (ord("d"), 3),
        ]

    async def test_wait_with_text_that_is_held(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(stop=("END",))
        rows = (self.told("aE"), self.told("N", 2), self.told("x", 3), self.told("EN", 4))
        end = self.told("", 6, finish="length")
        assert self.heard(await read_each(rig, generation, *rows, end)) == [
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
        rows = [row("r-0", at, byte) for at, byte in enumerate([0x61, 0xC3, 0xA4, 0xC3])]
        told = [structs.replace(one, logprobs=(TokenLogprobs(-float(at)),)) for at, one in enumerate(rows)]
        deltas = await read_each(rig, generation, *told, row("r-0", 4, finish="length"))
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
        rows = (self.told("aE"), self.told("NDxy", 2))
        assert self.heard(await read_each(rig, generation, *rows)) == [("a", [0.0]), ("", [-1.0, -2.0, -3.0])]
        assert generation.usage.completion_tokens == 4

    async def test_of_a_token_without_text_come_at_once(self, rig: Rig) -> None:
        await rig.open("a")
        rig.generator._token_bytes = lambda token_id: b"" if token_id == ord("_") else bytes([token_id])
        generation = await rig.start()
        rows = (self.told("_"), self.told("a", 1), self.told("_", 2, finish="stop"))
        assert self.heard(await read_each(rig, generation, *rows)) == [
            ("", [0.0]),
            ("a", [-1.0]),
            ("", [-2.0]),
        ]

    async def test_are_a_sibling_s_own(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start(n=2, stop=("END",))
        first = (self.told("E"), self.told("ab", sibling=1))
        then = (self.told("x", 1, finish="length"), self.told("c", 2, sibling=1, finish="length"))
        assert self.heard(await read_each(rig, generation, *first, *then)) == [
            ("", []),
            ("ab", [0.0, -1.0]),
            ("Ex", [0.0, -1.0]),
            ("c", [-2.0]),
        ]
