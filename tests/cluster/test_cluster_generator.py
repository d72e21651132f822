"""The generator: who gets a request, whom it refuses, and what each way of losing a replica costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster.api.errors import ApiError
from cluster.autoscaling.demand import FIRST_OUTPUT_TOKENS, OUTPUT_WEIGHT
from cluster.generation import TextDelta
from cluster.link import OCCUPIED, Abort, LinkDown, NotReached, SubmitReply
from engine.block_hash import hash_blocks, tenant_root
from engine.prefix_stats import PrefixStats
from engine.request import Flow, Timing
from tenants.tenant import cache_salt
from tenants.terms import ServiceClass, Terms
from tests.builders_tenants import SECRET
from tests.cluster.fake_replica import row, settle
from tests.cluster.generator_rig import BUSY, PROMPT, Frozen, Rig, account_of, read, tokens
from tests.cluster.room_rig import begun, error_of, small_rig

TIMING = Timing(0.1, 0.2, 0.3, 0.0, 0)
LOOKUP = PrefixStats(hit_tokens=32, below_block_tokens=8)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.links.close()


async def cut_off(rig: Rig) -> None:
    """A request whose client leaves after three tokens; its end is told twice."""
    await rig.open("a")
    generation = await rig.start()
    rig.replicas["a"].say(tokens("abc"))
    await anext(generation.deltas())
    generation.end("left")
    generation.end("finished")


async def refused(rig: Rig, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await rig.start(**fields)
    return caught.value


class TestASubmitThatFails:
    async def test_sends_the_request_to_another_replica(self, rig: Rig) -> None:
        """The lost one has the least load all the while, so load alone would choose it again."""
        await rig.open("a", "b")
        rig.replicas["b"].say(counters=BUSY)
        await settle()
        rig.replicas["a"].reply = NotReached("gone")
        generation = await rig.start()
        assert generation.replica_id == "b"
        assert [len(rig.replicas[name].submitted) for name in ("a", "b")] == [1, 1]
        assert rig.replicas["b"].submitted[0].attempt == 1
        rig.replicas["b"].say(tokens("x", finish="stop", attempt=1))
        assert await read(generation) == [TextDelta("x", "stop")]

    async def test_and_may_have_run_there_counts_against_it(self, rig: Rig) -> None:
        """A replica that it kills may die before it has answered."""
        await rig.open("a", "b", "c")
        for replica in rig.replicas.values():
            replica.reply = LinkDown("died")
        error = await refused(rig)
        assert (error.status, error.code) == (500, "poisonous_request")
        assert sum(len(replica.submitted) for replica in rig.replicas.values()) == 2

    async def test_makes_it_a_suspect_only_if_it_may_have_run_there(self, rig: Rig) -> None:
        await rig.open("a", "b")
        rig.replicas["b"].say(counters=BUSY)
        await settle()
        for number, (reply, is_suspect) in enumerate(((NotReached("gone"), False), (LinkDown("died"), True))):
            rig.replicas["a"].reply = reply
            rig.replicas["a"].say()
            await settle()
            await rig.start(f"r{number}")
            assert rig.replicas["b"].submitted[-1].is_suspect is is_suspect

    async def test_because_another_suspect_is_there_is_tried_again(self, rig: Rig) -> None:
        await rig.open("a", "b")
        rig.replicas["b"].say(counters=BUSY)
        await settle()
        rig.replicas["a"].reply = LinkDown("died")
        rig.replicas["b"].reply = SubmitReply(False, OCCUPIED)
        starting = asyncio.ensure_future(rig.start())
        while len(rig.replicas["b"].submitted) < 5:
            rig.replicas["b"].say()
            await asyncio.sleep(0.01)
        rig.replicas["b"].reply = SubmitReply(accepted=True)
        assert (await starting).replica_id == "b"

    async def test_is_followed_by_an_abort_for_it_may_have_arrived(self, rig: Rig) -> None:
        await rig.open("a", "b")
        rig.replicas["b"].say(counters=BUSY)
        await settle()
        rig.replicas["a"].reply = LinkDown("timed out")
        await rig.start()
        await settle()
        assert (rig.replicas["a"].aborted, rig.replicas["b"].aborted) == ([Abort("r-0")], [])

    async def test_everywhere_waits_for_a_replica_that_speaks_again(self, rig: Rig) -> None:
        await rig.open("a", "b")
        for replica in rig.replicas.values():
            replica.reply = NotReached("gone")
        starting = asyncio.ensure_future(rig.start())
        await settle()
        assert [len(replica.submitted) for replica in rig.replicas.values()] == [1, 1]
        assert not starting.done()
        rig.replicas["b"].reply = SubmitReply(accepted=True)
        rig.replicas["b"].say()
        assert (await starting).replica_id == "b"

    async def test_waits_no_longer_than_its_deadline(self, rig: Rig) -> None:
        await rig.open("a")
        rig.replicas["a"].reply = NotReached("gone")
        starting = asyncio.ensure_future(rig.start(deadline=1.0))
        await settle()
        rig.now = 1.0
        rig.replicas["a"].say()
        with pytest.raises(ApiError) as caught:
            await starting
        assert (caught.value.status, caught.value.code) == (503, "deadline_exceeded")
        assert len(rig.replicas["a"].submitted) == 1

    async def test_because_the_replica_leaves_is_no_refusal(self, rig: Rig) -> None:
        await rig.open("a", "b")
        rig.replicas["b"].say(counters=BUSY)
        await settle()
        rig.replicas["a"].reply = SubmitReply(False, "leaving")
        assert (await rig.start()).replica_id == "b"

    async def test_is_given_up_after_three(self, rig: Rig) -> None:
        await rig.open("a", "b", "c", "d")
        for replica in rig.replicas.values():
            replica.reply = NotReached("gone")
        error = await refused(rig)
        assert (error.status, error.code, error.retry_after_s) == (503, "no_capacity", 1.0)
        assert sum(len(replica.submitted) for replica in rig.replicas.values()) == 3

    async def test_for_want_of_any_replica_is_503_worth_a_retry(self, rig: Rig) -> None:
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
        await rig.start(account=account_of("acme"))
        (sent,) = rig.replicas["a"].submitted
        root = tenant_root(b"root", cache_salt(SECRET, "acme"))
        assert sent.hash_root == root
        assert sent.block_hashes == hash_blocks(root, PROMPT, 16)
        assert len(sent.block_hashes) == 2

    async def test_are_a_tenant_s_own(self, rig: Rig) -> None:
        await rig.open("a")
        for number, name in enumerate(("acme", "acme", "other")):
            await rig.start(f"r{number}", account=account_of(name))
        first, again, others = rig.replicas["a"].submitted
        assert first.block_hashes == again.block_hashes
        assert set(first.block_hashes).isdisjoint(others.block_hashes)

    async def test_follow_the_revision_of_the_replica_that_is_tried(self, rig: Rig) -> None:
        rig.replica("b").hash_root = b"another revision"
        await rig.open("a", "b")
        for replica in rig.replicas.values():
            replica.reply = NotReached("gone")
        starting = asyncio.ensure_future(rig.start())
        await settle()
        starting.cancel()
        salt = cache_salt(SECRET, "acme")
        assert {replica.submitted[0].hash_root for replica in rig.replicas.values()} == {
            tenant_root(b"root", salt),
            tenant_root(b"another revision", salt),
        }


class TestARequest:
    @pytest.mark.parametrize(("service_class", "priority"), [("interactive", 0), ("batch", 1)])
    async def test_says_whose_it_is_at_which_weight_and_of_which_class(
        self, rig: Rig, service_class: ServiceClass, priority: int
    ) -> None:
        await rig.open("a")
        account = account_of("acme")._replace(terms=Terms(weight=4))
        await rig.start(account=account, service_class=service_class)
        (sent,) = rig.replicas["a"].submitted
        assert (sent.flow, sent.priority) == (Flow("acme", 4), priority)


class TestWhatWasTaken:
    """Is settled once, at what the client got, whatever ends the request."""

    async def test_goes_to_the_engine_as_the_budget_pays_for_it(self, rig: Rig) -> None:
        await rig.open("a")
        rig.admission.max_tokens = 5
        generation = await rig.start()
        assert rig.replicas["a"].submitted[0].sampling.max_tokens == generation.max_tokens == 5

    async def test_is_given_back_if_no_replica_takes_the_request(self, rig: Rig) -> None:
        with pytest.raises(ApiError):
            await rig.start()
        assert rig.admission.books.outcomes == ["unserved"]

    async def test_is_given_back_if_the_client_leaves_before_a_replica_answers(self, rig: Rig) -> None:
        await rig.open("a")
        rig.replicas["a"].reply = asyncio.Event()
        task = asyncio.ensure_future(rig.start())
        await settle()
        task.cancel()
        await settle()
        assert rig.admission.books.outcomes == ["unserved"]

    async def test_is_charged_for_what_came_and_once(self, rig: Rig) -> None:
        await cut_off(rig)
        (settlement,) = rig.admission.books.settlements
        assert (settlement.outcome, settlement.prompt_tokens) == ("left", len(PROMPT))
        assert (settlement.completion_tokens, settlement.cost) == (3, len(PROMPT) + 3)

    async def test_counts_resumed_tokens_once(self, rig: Rig) -> None:
        await rig.open("a", "b")
        generation = await rig.start()
        first = rig.of(generation)
        deltas = generation.deltas()
        first.say(tokens("abc"))
        await anext(deltas)
        (other,) = [one for one in rig.replicas.values() if one is not first]
        first.die()
        await settle()
        coming = asyncio.ensure_future(anext(deltas))
        await settle()
        other.say(row(other.submitted[0].request_id, 3, ord("d"), finish="stop"))
        await coming
        generation.end("finished")
        (settlement,) = rig.admission.books.settlements
        assert settlement.completion_tokens == 4

    async def test_is_told_while_it_runs(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start()
        rig.replicas["a"].say(tokens("abc"))
        await anext(generation.deltas())
        (reservation,) = rig.admission.books.opened
        assert reservation.progress().completion_tokens == 3


class TestAFrozenTenant:
    async def test_s_running_requests_end_and_what_was_made_is_charged(self, rig: Rig) -> None:
        await rig.open("a")
        generation = await rig.start()
        rig.replicas["a"].say(tokens("abc"))
        deltas = generation.deltas()
        await anext(deltas)
        waiting = asyncio.ensure_future(anext(deltas))
        await settle()
        await rig.running.check(Frozen())
        with pytest.raises(ApiError) as caught:
            await waiting
        assert (caught.value.status, caught.value.code) == (403, "tenant_disabled")
        generation.end("left")
        await settle()
        assert rig.replicas["a"].aborted == [Abort("r-0")]
        assert rig.admission.books.settlements[0].completion_tokens == 3
        assert rig.running.num_requests == 0

    async def test_s_request_that_found_no_replica_is_not_kept(self, rig: Rig) -> None:
        with pytest.raises(ApiError):
            await rig.start()
        assert rig.running.num_requests == 0


class TestDemand:
    """What is offered, in tokens of service: `PROMPT` is of 40 tokens, and an answer of 8 at most."""

    async def test_is_what_the_door_let_in(self, rig: Rig) -> None:
        await rig.open("a")
        await rig.start()
        assert (rig.demand.offered_tokens_total, rig.demand.shed_tokens_total) == (40 + 8, 0)
        await rig.start("s", n=2)
        assert rig.demand.offered_tokens_total == (40 + 8) + (40 + 2 * 8)
        rig.admission.refusal = ApiError(429, "rate_limit_exceeded", "later")
        await refused(rig)
        assert rig.demand.offered_tokens_total == 104

    async def test_is_there_too_where_no_replica_is(self, rig: Rig) -> None:
        await refused(rig)
        assert (rig.demand.offered_tokens_total, rig.demand.shed_tokens_total) == (48, 48)

    async def test_of_one_that_comes_back_is_counted_once(self, rig: Rig) -> None:
        await refused(rig)
        await rig.open("a")
        await rig.start(is_return=True)
        assert (rig.demand.offered_tokens_total, rig.demand.shed_tokens_total) == (48, 48)

    async def test_of_one_that_is_refused_at_the_door_and_comes_back_is_counted_once(self) -> None:
        rig = await small_rig(max_waiting=1)
        await begun(rig, "r1")
        error = await error_of(await begun(rig, "r2"))
        assert error.retry_after_s is not None
        rig.now += error.retry_after_s
        assert (await error_of(await begun(rig, "r2"))).status == 503
        assert (rig.demand.offered_tokens_total, rig.demand.shed_tokens_total) == (2 * 48, 48)
        await rig.links.close()

    async def test_of_an_answer_teaches_once_what_the_next_ones_are_like(self, rig: Rig) -> None:
        await cut_off(rig)
        told = rig.demand.row(0.0, 0.0, 0, {})
        assert told.answer_tokens == FIRST_OUTPUT_TOKENS + OUTPUT_WEIGHT * (3 - FIRST_OUTPUT_TOKENS)

    async def test_that_is_the_client_s_fault_is_not_shed(self, rig: Rig) -> None:
        await rig.open("a")
        rig.replicas["a"].reply = SubmitReply(False, "limit_never_satisfiable", "needs 900 slots")
        await refused(rig)
        assert rig.demand.shed_tokens_total == 0

    async def test_is_less_where_a_replica_has_some_of_the_prompt(self, rig: Rig) -> None:
        await rig.open("a")
        rig.admission.claims = {rig.links.hello("a").incarnation: 2}
        prompt = tuple(range(100))
        await rig.start(prompt_token_ids=prompt)
        num_cached = 2 * rig.links.hello("a").block_size
        assert rig.demand.offered_tokens_total == pytest.approx(100 - 0.9 * num_cached + 8)


async def test_requests_spread_over_replicas_by_what_was_routed(rig: Rig) -> None:
    await rig.open("a", "b")
    first, second = await rig.start("r1"), await rig.start("r2")
    assert {first.replica_id, second.replica_id} == {"a", "b"}


async def test_a_client_that_left_aborts_once_and_its_unread_tokens_are_counted(rig: Rig) -> None:
    await rig.open("a")
    generation = await rig.start()
    rig.replicas["a"].say(tokens("ab"))
    await settle()
    generation.end("left")
    generation.end("left")
    await settle()
    assert rig.replicas["a"].aborted == [Abort("r-0")]
    assert rig.discarded == 2


async def test_a_client_that_left_before_the_reply_leaves_nothing(rig: Rig) -> None:
    await rig.open("a")
    rig.replicas["a"].reply = asyncio.Event()
    task = asyncio.ensure_future(rig.start())
    await settle()
    task.cancel()
    await settle()
    assert rig.replicas["a"].aborted == [Abort("r-0")]
    assert rig.links.candidates()[0].in_flight_tokens == 0
