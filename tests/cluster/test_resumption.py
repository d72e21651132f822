"""A replica dies, leaves or fails under a running request: the answer goes on elsewhere, unbroken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cluster.api.errors import ApiError
from cluster.generation import TextDelta
from cluster.link import Abort
from engine.block_hash import hash_blocks, tenant_root
from engine.request import SamplingParams
from tenants.tenant import cache_salt
from tests.builders_tenants import SECRET
from tests.cluster.fake_replica import DRAIN_LIMIT_S, settle
from tests.cluster.generator_rig import BUSY, PROMPT, Rig, read, tokens


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Replicas a, b, c; a has the least load and gets the first request."""
    rig = await Rig().open("a", "b", "c")
    for name in ("b", "c"):
        rig.replicas[name].say(counters=BUSY)
    await settle()
    yield rig
    await rig.links.close()


async def text_and_end(deltas: AsyncIterator[TextDelta]) -> tuple[str, list[str | None]]:
    rest = [delta async for delta in deltas]
    return "".join(delta.text for delta in rest), [delta.finish_reason for delta in rest][-1:]


async def until_submitted(rig: Rig, *names: str, attempt: int) -> str:
    """The replica to which the attempt went."""
    for _ in range(1000):
        for name in names or tuple(rig.replicas):
            if any(sent.attempt == attempt for sent in rig.replicas[name].submitted):
                return name
        await asyncio.sleep(0)
    raise AssertionError("it was not submitted again")


class TestADeath:
    async def test_costs_no_token_and_doubles_none(self, rig: Rig) -> None:
        generation = await rig.start(sampling=SamplingParams(max_tokens=8, seed=5))
        rig.replicas["a"].say(tokens("abc"))
        rig.replicas["a"].die()
        reading = asyncio.ensure_future(text_and_end(generation.deltas()))
        heir = await until_submitted(rig, "b", "c", attempt=1)
        (sent,) = rig.replicas[heir].submitted
        assert sent.output_token_ids == tuple(map(ord, "abc"))
        assert (sent.request_id, sent.prompt_token_ids, sent.sibling, sent.n) == ("r-1", PROMPT, 0, 1)
        assert sent.sampling == SamplingParams(max_tokens=8, seed=5)
        assert sent.block_hashes == hash_blocks(tenant_root(b"root", cache_salt(SECRET, "acme")), PROMPT, 16)
        rig.replicas[heir].say(tokens("de", 3, attempt=1, finish="length"))
        assert await reading == ("abcde", ["length"])
        assert generation.usage.completion_tokens == 5
        assert generation.replica_id == heir
        assert rig.observer.resumed == ["lost"]

    async def test_before_the_first_token_starts_anew(self, rig: Rig) -> None:
        generation = await rig.start()
        rig.replicas["a"].die()
        reading = asyncio.ensure_future(read(generation))
        heir = await until_submitted(rig, "b", "c", attempt=1)
        assert rig.replicas[heir].submitted[0].output_token_ids == ()
        rig.replicas[heir].say(tokens("x", attempt=1, finish="stop", num_cached_tokens=32))
        assert await reading == [TextDelta("x", "stop")]
        assert generation.usage.cached_tokens == 32

    async def test_keeps_what_the_first_replica_told_of_the_cache(self, rig: Rig) -> None:
        generation = await rig.start()
        rig.replicas["a"].say(tokens("a", num_cached_tokens=16))
        rig.replicas["a"].die()
        reading = asyncio.ensure_future(read(generation))
        heir = await until_submitted(rig, attempt=1)
        rig.replicas[heir].say(tokens("b", 1, attempt=1, finish="stop", num_cached_tokens=32))
        await reading
        assert generation.usage.cached_tokens == 16
        assert rig.observer.predictions == [(0, 16)]

    async def test_keeps_a_stop_string_that_was_begun(self, rig: Rig) -> None:
        generation = await rig.start(stop=("END",))
        rig.replicas["a"].say(tokens("okEN"))
        rig.replicas["a"].die()
        reading = asyncio.ensure_future(text_and_end(generation.deltas()))
        heir = await until_submitted(rig, attempt=1)
        rig.replicas[heir].say(tokens("Dx", 4, attempt=1))
        assert await reading == ("ok", ["stop"])
        assert generation.usage.completion_tokens == 5
        await settle()
        assert rig.replicas[heir].aborted == [Abort("r-1", 0)]

    async def test_waits_for_a_replica_where_there_is_none(self, rig: Rig) -> None:
        generation = await rig.start()
        rig.replicas["a"].say(tokens("ab"))
        for name in "abc":
            rig.replicas[name].die()
        await settle()
        assert rig.candidates() == set()
        reading = asyncio.ensure_future(text_and_end(generation.deltas()))
        for name in "abc":
            await rig.replicas[name].attached_again.wait()
        heir = await until_submitted(rig, attempt=1)
        await settle()
        rig.replicas[heir].say(tokens("c", 2, attempt=1, finish="stop"))
        assert await reading == ("abc", ["stop"])

    async def test_of_a_late_row_of_the_old_attempt_nothing_is_heard(self, rig: Rig) -> None:
        generation = await rig.start()
        rig.replicas["a"].say(tokens("ab"))
        rig.replicas["a"].die()
        reading = asyncio.ensure_future(text_and_end(generation.deltas()))
        heir = await until_submitted(rig, attempt=1)
        await rig.replicas["a"].attached_again.wait()
        rig.replicas["a"].say(tokens("cX", 2, finish="stop"))
        await settle()
        rig.replicas[heir].say(tokens("c", 2, attempt=1, finish="stop"))
        assert await reading == ("abc", ["stop"])
        assert rig.discarded == 2

    async def test_of_a_client_that_leaves_meanwhile_leaves_nothing(self, rig: Rig) -> None:
        generation = await rig.start()
        rig.replicas["b"].reply = rig.replicas["c"].reply = asyncio.Event()
        rig.replicas["a"].die()
        reading = asyncio.ensure_future(read(generation))
        heir = await until_submitted(rig, "b", "c", attempt=1)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        generation.end("left")
        await settle()
        assert rig.replicas[heir].aborted == [Abort("r-1")]

    async def test_passed_its_deadline_is_not_repaired(self, rig: Rig) -> None:
        generation = await rig.start(deadline=5.0)
        rig.now = 5.0
        rig.replicas["a"].die()
        with pytest.raises(ApiError) as caught:
            await read(generation)
        assert (caught.value.status, caught.value.code) == (503, "deadline_exceeded")
        assert sum(len(replica.submitted) for replica in rig.replicas.values()) == 1


class TestPoison:
    async def test_is_refused_after_the_second_replica_and_sdks_do_not_retry(self, rig: Rig) -> None:
        generation = await rig.start()
        reading = asyncio.ensure_future(read(generation))
        rig.replicas["a"].die()
        second = await until_submitted(rig, "b", "c", attempt=1)
        await settle()
        rig.replicas[second].die()
        with pytest.raises(ApiError) as caught:
            await reading
        assert (caught.value.status, caught.value.code) == (500, "poisonous_request")
        assert caught.value.headers == {"x-should-retry": "false"}
        assert sum(len(replica.submitted) for replica in rig.replicas.values()) == 2
        assert rig.observer.num_poisonous == 1

    async def test_its_id_is_in_the_log(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        generation = await rig.start("the-one")
        reading = asyncio.ensure_future(read(generation))
        rig.replicas["a"].die()
        second = await until_submitted(rig, "b", "c", attempt=1)
        await settle()
        rig.replicas[second].die()
        await asyncio.gather(reading, return_exceptions=True)
        assert "request the-one is poisonous" in caplog.text

    async def test_is_not_who_made_a_token_between(self, rig: Rig) -> None:
        generation = await rig.start()
        reading = asyncio.ensure_future(text_and_end(generation.deltas()))
        rig.replicas["a"].die()
        second = await until_submitted(rig, "b", "c", attempt=1)
        rig.replicas[second].say(tokens("a", attempt=1))
        await settle()
        rig.replicas[second].die()
        third = await until_submitted(rig, attempt=2)
        await settle()
        rig.replicas[third].say(tokens("b", 1, attempt=2, finish="stop"))
        assert await reading == ("ab", ["stop"])

    async def test_siblings_lose_one_replica_together(self, rig: Rig) -> None:
        generation = await rig.start(n=2)
        rig.replicas["a"].say(tokens("a"), tokens("x", sibling=1))
        reading = asyncio.ensure_future(read(generation))
        await settle()
        rig.replicas["a"].die()
        await until_submitted(rig, "b", "c", attempt=1)
        await until_submitted(rig, "b", "c", attempt=2)
        assert rig.observer.num_poisonous == 0
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


class TestAGatewayThatEnds:
    async def test_takes_nothing_new_and_still_resumes_what_runs(self, rig: Rig) -> None:
        generation = await rig.start()
        rig.generator.stop_admitting()
        with pytest.raises(ApiError) as refused:
            await rig.start("late")
        assert (refused.value.status, refused.value.code) == (503, "no_capacity")
        rig.replicas["a"].die()
        reading = asyncio.ensure_future(read(generation))
        heir = await until_submitted(rig, "b", "c", attempt=1)
        await settle()
        rig.replicas[heir].say(tokens("x", attempt=1, finish="stop"))
        assert await reading == [TextDelta("x", "stop")]

    @pytest.mark.parametrize("has_replica", [True, False])
    async def test_says_so_to_what_is_cut_off(self, rig: Rig, has_replica: bool) -> None:
        generation = await rig.start()
        reading = asyncio.ensure_future(read(generation))
        if not has_replica:
            for name in "abc":
                rig.replicas[name].die()
        await settle()
        await rig.links.close()
        with pytest.raises(ApiError) as caught:
            await reading
        assert (caught.value.status, caught.value.code) == (503, "no_capacity")
        assert rig.observer.num_poisonous == 0


class TestSiblings:
    async def test_go_on_each_behind_its_own_tokens(self, rig: Rig) -> None:
        generation = await rig.start(n=3)
        rig.replicas["a"].say(tokens("ab"), tokens("x", sibling=1), tokens("p", sibling=2, finish="stop"))
        rig.replicas["a"].die()
        reading = asyncio.ensure_future(read(generation))
        heirs = [await until_submitted(rig, "b", "c", attempt=attempt) for attempt in (1, 2)]
        sent = {one.sibling: one for name in "bc" for one in rig.replicas[name].submitted}
        assert {sibling: one.output_token_ids for sibling, one in sent.items()} == {
            0: tuple(map(ord, "ab")),
            1: (ord("x"),),
        }
        assert all(one.n == 1 for one in sent.values())
        await settle()
        rig.replicas[heirs[0]].say(tokens("c", 2, attempt=1, finish="stop"))
        rig.replicas[heirs[1]].say(tokens("y", 1, sibling=1, attempt=2, finish="length"))
        texts = {0: "", 1: "", 2: ""}
        for delta in await reading:
            texts[delta.sibling] += delta.text
        assert texts == {0: "abc", 1: "xy", 2: "p"}
        assert generation.usage.completion_tokens == 6

    async def test_without_a_token_go_on_as_one_request(self, rig: Rig) -> None:
        generation = await rig.start(n=2)
        rig.replicas["a"].die()
        reading = asyncio.ensure_future(read(generation))
        heir = await until_submitted(rig, "b", "c", attempt=1)
        assert [(one.sibling, one.n) for one in rig.replicas[heir].submitted] == [(0, 2)]
        await settle()
        rig.replicas[heir].say(
            tokens("a", attempt=1, finish="stop"), tokens("b", sibling=1, attempt=1, finish="stop")
        )
        assert await reading == [TextDelta("a", "stop", 0), TextDelta("b", "stop", 1)]


class TestALeavingReplica:
    async def test_moves_what_outlasts_the_limit_and_blames_nobody(self, rig: Rig) -> None:
        generation = await rig.start()
        rig.replicas["a"].say(tokens("ab"))
        await settle()
        reading = asyncio.ensure_future(text_and_end(generation.deltas()))
        rig.links.set_replicas(frozenset({"b", "c"}))
        await asyncio.sleep(DRAIN_LIMIT_S)
        heir = await until_submitted(rig, "b", "c", attempt=1)
        assert rig.replicas[heir].submitted[0].output_token_ids == tuple(map(ord, "ab"))
        await settle()
        rig.replicas[heir].say(tokens("c", 2, attempt=1, finish="stop"))
        assert await reading == ("abc", ["stop"])
        assert rig.observer.resumed == ["left"]
        assert rig.left == [(ord("a"), Abort("r-0"))]

    async def test_moves_to_its_own_revision_while_there_is_one(self, rig: Rig) -> None:
        rig.replica("d").hash_root = b"next"
        await rig.open("a", "b", "d")
        rig.replicas["d"].say(counters=BUSY)
        await settle()
        generation = await rig.start()
        rig.replicas["a"].say(tokens("ab"))
        rig.replicas["d"].say()  # idle now, and b is busy
        reading = asyncio.ensure_future(read(generation))
        await settle()
        rig.replicas["a"].die()
        assert await until_submitted(rig, attempt=1) == "b"
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    async def test_moves_to_another_revision_rather_than_nowhere(self, rig: Rig) -> None:
        rig.replica("d").hash_root = b"next"
        await rig.open("a", "d")
        rig.replicas["d"].say(counters=BUSY)
        await settle()
        generation = await rig.start()
        rig.replicas["a"].say(tokens("ab"))
        reading = asyncio.ensure_future(text_and_end(generation.deltas()))
        await settle()
        rig.replicas["a"].die()
        assert await until_submitted(rig, attempt=1) == "d"
        (sent,) = rig.replicas["d"].submitted
        assert sent.hash_root == tenant_root(b"next", cache_salt(SECRET, "acme"))
        rig.replicas["d"].say(tokens("c", 2, attempt=1, finish="stop"))
        assert await reading == ("abc", ["stop"])


class TestAFailedStep:
    async def test_is_repeated_elsewhere_after_what_came_before_it(self, rig: Rig) -> None:
        generation = await rig.start()
        rig.replicas["a"].say(tokens("ab"))
        rig.replicas["a"].say(tokens("", 2, finish="error", error_code="engine_error"))
        reading = asyncio.ensure_future(text_and_end(generation.deltas()))
        heir = await until_submitted(rig, "b", "c", attempt=1)
        assert rig.replicas[heir].submitted[0].output_token_ids == tuple(map(ord, "ab"))
        await settle()
        rig.replicas[heir].say(tokens("c", 2, attempt=1, finish="stop"))
        assert await reading == ("abc", ["stop"])
        assert rig.observer.resumed == ["failed_step"]

    async def test_twice_in_a_row_is_poison(self, rig: Rig) -> None:
        generation = await rig.start()
        rig.replicas["a"].say(tokens("", finish="error", error_code="engine_error"))
        reading = asyncio.ensure_future(read(generation))
        heir = await until_submitted(rig, "b", "c", attempt=1)
        await settle()
        rig.replicas[heir].say(tokens("", attempt=1, finish="error", error_code="engine_error"))
        with pytest.raises(ApiError) as caught:
            await reading
        assert caught.value.code == "poisonous_request"

    async def test_of_siblings_counts_once(self, rig: Rig) -> None:
        generation = await rig.start(n=2)
        rig.replicas["a"].say(tokens("a"), tokens("x", sibling=1))
        failed = {"finish": "error", "error_code": "engine_error"}
        rig.replicas["a"].say(tokens("", 1, **failed), tokens("", 1, sibling=1, **failed))  # type: ignore[arg-type]
        reading = asyncio.ensure_future(read(generation))
        first, second = [await until_submitted(rig, "b", "c", attempt=number) for number in (1, 2)]
        await settle()
        rig.replicas[first].say(tokens("b", 1, attempt=1, finish="stop"))
        rig.replicas[second].say(tokens("y", 1, sibling=1, attempt=2, finish="stop"))
        texts = {0: "", 1: ""}
        for delta in await reading:
            texts[delta.sibling] += delta.text
        assert texts == {0: "ab", 1: "xy"}


class TestSteering:
    async def test_a_claim_decides_against_load(self, rig: Rig) -> None:
        rig.admission.claims = {ord("b"): 4}
        rig.replicas["b"].say()  # as idle as a
        await settle()
        generation = await rig.start(prompt_token_ids=tuple(range(80)))
        assert generation.replica_id == "b"
        (lookup,) = rig.admission.lookups
        assert sorted(lookup.incarnations) == [ord(name) for name in "abc"]
        assert list(lookup.block_hashes) == list(rig.replicas["b"].submitted[0].block_hashes)
        rig.replicas["b"].say(tokens("x", num_cached_tokens=48, finish="stop"))
        await read(generation)
        assert rig.observer.predictions == [(64, 48)]

    async def test_a_prompt_without_an_indexed_block_asks_nothing(self, rig: Rig) -> None:
        await rig.start(prompt_token_ids=tuple(range(63)))
        assert rig.admission.lookups == []

    async def test_what_went_there_just_now_is_known_before_the_index_knows(self, rig: Rig) -> None:
        prompt = tuple(range(400))
        first = await rig.start("r0", prompt_token_ids=prompt)
        for name in "abc":
            rig.replicas[name].say()
            rig.replicas[name].say()  # what was routed is in its counters now
        await settle()
        assert (await rig.start("r1", prompt_token_ids=prompt)).replica_id == first.replica_id

    async def test_a_claim_of_more_than_can_be_cached_is_cut(self, rig: Rig) -> None:
        """At least one token is computed."""
        rig.admission.claims = {ord("a"): 4}
        await rig.start(prompt_token_ids=tuple(range(64)))
        load = next(one for one in rig.links.candidates() if one.replica_id == "a")
        assert load.in_flight_tokens == 16

    async def test_each_live_revision_is_asked_with_its_own_chain(self, rig: Rig) -> None:
        rig.replica("d").hash_root = b"next"
        await rig.open("a", "b", "c", "d")
        await rig.start(prompt_token_ids=tuple(range(64)))
        roots = {lookup.root: sorted(lookup.incarnations) for lookup in rig.admission.lookups}
        salt = cache_salt(SECRET, "acme")
        assert roots == {
            tenant_root(b"root", salt): [ord(name) for name in "abc"],
            tenant_root(b"next", salt): [ord("d")],
        }
