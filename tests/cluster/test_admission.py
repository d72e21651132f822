"""Admission: limits and claims come in one round trip, and what was taken of a request is never lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError

from cluster.admission import Admission, Admitted, Lookup, Who
from cluster.api.errors import ApiError
from cluster.generation import GenerationRequest
from cluster.index.prefix_index import Changes
from cluster.index.redis_index import RedisPrefixIndex, entries_of
from engine.block_hash import hash_blocks
from engine.request import SamplingParams
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Granted, Refused, Standing
from tenants.ledger.redis_ledger import RedisLedger
from tenants.reseed import EPOCH_KEY
from tenants.store import Account, StoreUnavailable, Trouble
from tenants.terms import Limits, Terms
from tests.builders_tenants import a_key, a_tenant
from tests.cluster.fake_books import NOW, FakeBooks

ROOT = b"r" * 16
CHAIN = hash_blocks(ROOT, range(128), 16)
LOOKUP = Lookup(ROOT, CHAIN, (1, 2))
A_TOKEN = 10**6
"""Price of a micro-unit a token."""


class Rig:
    """An admission over a real Redis; it is its own standby, which serves nobody, and its own observer."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.ledger = RedisLedger(redis)
        self.index = RedisPrefixIndex(redis)
        self.books = FakeBooks()
        self.trouble: Trouble | None = None
        self.granted: list[Granted] = []
        self.refused: list[Refused] = []
        self.offline: list[Trouble] = []
        self.seen: list[Standing] = []
        self.lookups: list[bool] = []
        self.admission = Admission(
            redis,
            self.ledger,
            self.index,
            self,
            self,
            self.books,
            Who("g", "tiny", lambda: NOW),
            self,
            self.lookups.append,
        )

    def failed(self, trouble: Trouble) -> None:
        self.trouble = trouble

    async def reserve(self, ask: Ask, terms: Terms) -> Granted | Refused:
        raise StoreUnavailable

    def saw(self, ask: Ask, terms: Terms, standing: Standing) -> None:
        self.seen.append(standing)

    def count_granted(self, tenant_id: str, granted: Granted) -> None:
        self.granted.append(granted)

    def count_refused(self, tenant_id: str, refused: Refused) -> None:
        self.refused.append(refused)

    def count_offline(self, trouble: Trouble) -> None:
        self.offline.append(trouble)

    async def admit(
        self, request_id: str = "r", account: Account | None = None, *lookups: Lookup, **fields: Any
    ) -> Admitted:
        sampling = {"max_tokens": 20} | fields
        request = GenerationRequest(
            request_id=request_id,
            account=account or an_account(),
            prompt_token_ids=tuple(range(10)),
            sampling=SamplingParams(**sampling),
            deadline=0.0,
        )
        return await self.admission.admit(request, lookups)

    async def refusal(self, request_id: str, account: Account, **fields: Any) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await self.admit(request_id, account, **fields)
        return caught.value


def an_account(key_limits: Limits | None = None, **terms: Any) -> Account:
    return Account(a_key(limits=key_limits), a_tenant(), Terms(**terms))


@pytest.fixture
async def rig(redis: Redis) -> Rig:
    await redis.set(EPOCH_KEY, "1")
    return Rig(redis)


class TestLimits:
    async def test_let_a_request_in_and_say_how_its_tenant_stands(self, rig: Rig) -> None:
        admitted = await rig.admit("r", an_account(requests_per_min=5))
        assert (admitted.reservation.max_tokens, admitted.claims) == (20, {})
        gauge = admitted.reservation.standing.tightest("requests")
        assert gauge is not None
        assert (gauge.limit, gauge.remaining) == (5, 4)
        assert rig.seen == [admitted.reservation.standing] == [rig.granted[0].standing]

    async def test_refuse_with_what_there_is_and_when(self, rig: Rig) -> None:
        account = an_account(requests_per_min=1)
        await rig.admit("r1", account)
        error = await rig.refusal("r2", account)
        assert (error.status, error.code) == (429, "rate_limit_exceeded")
        assert error.retry_after_s is not None
        assert 59 < error.retry_after_s <= 60
        assert error.headers["x-ratelimit-remaining-requests"] == "0"
        assert [one.kind for one in rig.refused] == ["requests"]
        assert len(rig.books.opened) == 1

    async def test_of_the_key_count_beside_the_tenant_s(self, rig: Rig) -> None:
        account = an_account(Limits(requests_per_min=1), requests_per_min=5)
        await rig.admit("r1", account)
        assert (await rig.refusal("r2", account)).status == 429
        other = an_account(requests_per_min=5)
        gauge = (await rig.admit("r3", other)).reservation.standing.tightest("requests")
        assert gauge is not None
        assert gauge.remaining == 3  # the refused one took nothing of the tenant's

    async def test_of_money_shorten_the_answer(self, rig: Rig) -> None:
        account = an_account(budget_day=27, input_price=A_TOKEN, output_price=A_TOKEN)
        admitted = await rig.admit("r1", account)
        assert admitted.reservation.max_tokens == 17
        assert (await rig.refusal("r2", account)).status == 402

    async def test_of_money_that_do_not_pay_for_min_tokens_are_402_and_keep_nothing(self, rig: Rig) -> None:
        account = an_account(budget_day=27, input_price=A_TOKEN, output_price=A_TOKEN)
        error = await rig.refusal("r1", account, min_tokens=18)
        assert (error.status, error.code) == (402, "insufficient_quota")
        assert rig.books.outcomes == ["unserved"]
        assert (rig.granted, [one.kind for one in rig.refused]) == ([], ["budget_day"])

    async def test_that_hold_something_else_than_ours_are_503_and_nobody_else_s_trouble(
        self, rig: Rig
    ) -> None:
        account = an_account(requests_per_min=1)
        await rig.admit("r1", account)
        await rig.redis.delete("headrace:{acme}:account")
        await rig.redis.set("headrace:{acme}:account", "a string")
        assert (await rig.refusal("r2", account)).code == "store_unavailable"
        assert rig.trouble is None
        assert [ask.request_id for ask in rig.books.given_back] == ["r2"]


class TestTheRoundTrip:
    @pytest.fixture
    async def sent(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The commands of each pipeline, once the scripts are loaded."""
        await rig.ledger.load()
        sent: list[int] = []
        execute = Pipeline.execute

        async def counted(pipeline: Pipeline, **options: Any) -> Any:
            sent.append(len(pipeline))
            return await execute(pipeline, **options)

        monkeypatch.setattr(Pipeline, "execute", counted)
        return sent

    async def test_is_one(self, rig: Rig, sent: list[int]) -> None:
        """The epoch, the takes, a word to the reaper, and a look-up a revision."""
        await rig.admit("r", None, LOOKUP, LOOKUP)
        assert sent == [5]

    async def test_is_shared_by_those_who_ask_at_once(self, rig: Rig, sent: list[int]) -> None:
        account = an_account(requests_per_min=2)
        one, two, three = await asyncio.gather(
            *(rig.admit(f"r{number}", account) for number in range(3)), return_exceptions=True
        )
        assert sent == [9]
        assert isinstance(one, Admitted)
        assert isinstance(two, Admitted)
        assert isinstance(three, ApiError)
        assert three.status == 429

    @pytest.mark.parametrize("error", [AuthenticationError("no"), BusyLoadingError("loading")])
    async def test_that_redis_refuses_is_told_as_that(
        self, rig: Rig, error: RedisError, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refuse(*_: object, **__: object) -> Any:
            raise error

        monkeypatch.setattr(Pipeline, "execute", refuse)
        assert (await rig.refusal("r", an_account())).status == 503
        assert (rig.trouble, rig.offline) == ("refused", ["refused"])

    async def test_whose_answer_the_client_did_not_wait_for_gives_back(self, rig: Rig) -> None:
        await rig.redis.ping()
        asking = asyncio.ensure_future(rig.admit("r"))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert [ask.request_id for ask in rig.books.given_back] == ["r"]
        assert rig.books.outcomes == ["unserved"]

    async def test_that_does_not_come_back_in_time_is_the_record_s_trouble(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cluster.admission.CALL_TIMEOUT_S", 0.0)
        assert (await rig.refusal("r", an_account())).status == 503
        assert (rig.trouble, rig.offline) == ("timeout", ["timeout"])
        assert [ask.request_id for ask in rig.books.given_back] == ["r"]

    async def test_is_not_made_while_the_record_is_in_trouble(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig.trouble = "unreachable"
        monkeypatch.setattr(Pipeline, "execute", None)
        assert (await rig.refusal("r", an_account())).code == "store_unavailable"
        assert rig.books.given_back == []

    async def test_to_a_record_that_came_back_empty_decides_nothing(self, rig: Rig) -> None:
        await rig.redis.delete(EPOCH_KEY)
        assert (await rig.refusal("r", an_account())).status == 503
        assert rig.trouble == "empty"
        assert rig.books.outcomes == ["unserved"]


class TestTheIndex:
    async def test_s_claims_come_with_the_grant(self, rig: Rig) -> None:
        for incarnation, stored in ((1, (CHAIN[3], CHAIN[7])), (2, (CHAIN[3],)), (3, (CHAIN[3],))):
            await rig.index.claim(incarnation)
            await rig.index.publish(incarnation, [Changes(ROOT, stored)], frozenset())
        admitted = await rig.admit("r", None, LOOKUP)
        assert admitted.claims == {1: 8, 2: 4}
        assert rig.lookups == [True]

    async def test_that_forgot_its_script_costs_its_claims_only(self, rig: Rig) -> None:
        await rig.redis.script_flush()
        await rig.ledger.load()
        assert (await rig.admit("r", None, LOOKUP)).claims == {}
        assert (rig.lookups, rig.trouble) == ([False], None)

    async def test_that_holds_something_else_costs_its_claims_only(self, rig: Rig) -> None:
        await rig.index.look_up(*LOOKUP)
        for block_hash in (CHAIN[3], CHAIN[7]):
            await rig.redis.rpush(entries_of(ROOT).encode() + block_hash, "x")
        assert (await rig.admit("r", None, LOOKUP)).claims == {}
        assert rig.trouble is None

    async def test_is_not_asked_for_nothing(self, rig: Rig) -> None:
        await rig.admit("r")
        assert rig.lookups == []


async def test_an_ask_says_what_the_request_may_use(rig: Rig) -> None:
    limits = Limits(requests_per_min=3)
    account = an_account(limits, input_price=7, output_price=9)
    await rig.admit("r", account)
    (reservation,) = rig.books.opened
    ask = reservation._ask
    assert (ask.request_id, ask.tenant_id, ask.key_id) == ("r", "acme", account.key.key_id)
    assert (ask.prompt_tokens, ask.n, ask.max_tokens, ask.started_at) == (10, 1, 20, NOW)
    assert ask.scopes == (Scope(None, account.terms), Scope(account.key.key_id, limits))
    assert (ask.prices.input, ask.prices.output) == (7, 9)
