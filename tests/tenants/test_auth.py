"""Who may come in, and for how long an answer of the store counts."""

import asyncio

import msgspec
import pytest

from tenants.api_key import new_key
from tenants.auth import GRACE_S, Authenticator, DisabledTenant, InvalidKey
from tenants.store import Account, StoreUnavailable, Trouble
from tenants.store_memory import MemoryTenantStore
from tenants.tier import PAID
from tests.builders_tenants import BY, SECRET, FakeClock, a_key, a_real_key, a_tenant, switched_off

replace = msgspec.structs.replace


class WatchedStore(MemoryTenantStore):
    """Counts look-ups, can be cut off, and can hold answers back until `gate` opens."""

    def __init__(self) -> None:
        super().__init__()
        self.num_asked = 0
        self.is_away = False
        self.trouble: Trouble = "unreachable"
        self.gate = asyncio.Event()
        self.gate.set()

    async def find_key(self, key_hash: str) -> Account | None:
        self.num_asked += 1
        answer = await super().find_key(key_hash)
        await self.gate.wait()
        if self.is_away:
            raise StoreUnavailable("away", self.trouble)
        return answer


class Door:
    """An authenticator over a watched store that knows one key of tenant acme."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = WatchedStore()
        self.num_stale = 0
        self.auth = Authenticator(
            self.store, SECRET, self.clock, ttl_s=0.5, max_entries=8, on_stale=self._count_stale
        )

    def _count_stale(self) -> None:
        self.num_stale += 1

    async def enter(self, key: str, address: str | None = "192.0.2.1") -> Account:
        return await self.auth.authenticate(key, address)

    async def knows(self, **fields: object) -> str:
        key, record = a_real_key(**fields)
        if await self.store.get_tenant("acme") is None:
            await self.store.create_tenant(a_tenant(), BY)
        await self.store.create_key(record, BY)
        return key


@pytest.fixture
async def door() -> Door:
    return Door()


async def test_a_good_key_names_its_tenant_scopes_and_terms(door: Door) -> None:
    key = await door.knows(scopes=("inference", "metrics"))
    account = await door.enter(key)
    assert (account.tenant, account.key.hint) == (a_tenant(), key[-4:])
    assert (account.key.scopes, account.terms) == (("inference", "metrics"), PAID.terms)


@pytest.mark.parametrize(
    "key", ["", "hr-", "sk-1234", "hr-" + "A" * 38, "hr-" + "é" * 38, new_key()[:-1] + "é", "x" * 100_000]
)
async def test_a_malformed_key_never_reaches_the_store(door: Door, key: str) -> None:
    with pytest.raises(InvalidKey):
        await door.enter(key)
    assert door.store.num_asked == 0


async def test_an_unknown_key_is_asked_for_once_in_its_time(door: Door) -> None:
    key = new_key()
    for _ in range(3):
        with pytest.raises(InvalidKey):
            await door.enter(key)
    assert door.store.num_asked == 1


async def test_an_answer_counts_for_its_time_and_no_longer(door: Door) -> None:
    key = await door.knows()
    asked = []
    for moment in (0.0, 0.4, 0.5, 0.9, 1.0):
        door.clock.now = 100.0 + moment
        await door.enter(key)
        asked.append(door.store.num_asked)
    assert asked == [1, 1, 2, 2, 3]


async def test_a_key_deleted_elsewhere_is_dead_within_a_second(door: Door) -> None:
    key = await door.knows()
    account = await door.enter(key)
    await door.store.delete_key(account.key.key_id, None, BY)
    door.clock.advance(0.5)
    with pytest.raises(InvalidKey):
        await door.enter(key)


async def test_a_slow_answer_counts_from_when_it_was_asked_for(door: Door) -> None:
    key = await door.knows()
    door.store.gate.clear()
    first = asyncio.create_task(door.enter(key))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    door.clock.advance(0.5)
    door.store.gate.set()
    await first
    await door.enter(key)
    assert door.store.num_asked == 2


async def test_a_key_deleted_here_is_dead_at_once(door: Door) -> None:
    key = await door.knows()
    account = await door.enter(key)
    await door.store.delete_key(account.key.key_id, None, BY)
    door.auth.forget_key(account.key.key_id)
    with pytest.raises(InvalidKey):
        await door.enter(key)


async def test_the_keys_of_a_tenant_deleted_here_are_dead_at_once(door: Door) -> None:
    key = await door.knows()
    await door.enter(key)
    await door.store.delete_tenant("acme", None, BY)
    door.auth.forget_tenant("acme")
    with pytest.raises(InvalidKey):
        await door.enter(key)


async def test_an_answer_read_before_a_deletion_is_not_remembered_after_it(door: Door) -> None:
    key = await door.knows()
    record = (await door.store.list_keys("acme"))[0]
    door.store.gate.clear()
    early = asyncio.create_task(door.enter(key))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await door.store.delete_key(record.key_id, None, BY)
    door.auth.forget_key(record.key_id)
    late = asyncio.create_task(door.enter(key))
    await asyncio.sleep(0)
    door.store.gate.set()
    assert (await early).key == record
    for attempt in (late, door.enter(key)):
        with pytest.raises(InvalidKey):
            await attempt


async def test_a_key_expires_at_its_moment_even_while_remembered(door: Door) -> None:
    key = await door.knows(expires_at=door.clock.now + 0.25)
    await door.enter(key)
    door.clock.advance(0.24)
    await door.enter(key)
    door.clock.advance(0.01)
    with pytest.raises(InvalidKey):
        await door.enter(key)
    assert door.store.num_asked == 1


@pytest.mark.parametrize(("second", "lives"), [(-1, True), (-0.001, True), (0, False), (1, False)])
async def test_a_key_lives_up_to_its_last_second(door: Door, second: float, lives: bool) -> None:
    key = await door.knows(expires_at=door.clock.now + 100)
    door.clock.advance(100 + second)
    if lives:
        await door.enter(key)
    else:
        with pytest.raises(InvalidKey):
            await door.enter(key)


async def test_through_a_rotation_one_of_the_keys_always_works(door: Door) -> None:
    old = await door.knows(number=1)
    new = await door.knows(number=2)
    record = (await door.enter(old)).key
    await door.store.put_key(replace(record, expires_at=door.clock.now + 60), record.version, BY)
    door.auth.forget_key(record.key_id)
    assert [(await door.enter(key)).key.key_id for key in (old, new)] == [a_key(1).key_id, a_key(2).key_id]
    door.clock.advance(60)
    assert (await door.enter(new)).key.key_id == a_key(2).key_id
    with pytest.raises(InvalidKey):
        await door.enter(old)


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::7"])
async def test_a_key_with_addresses_works_from_there(door: Door, address: str) -> None:
    key = await door.knows(addresses=("10.0.0.0/8", "2001:db8::/32"))
    assert (await door.enter(key, address)).tenant == a_tenant()


@pytest.mark.parametrize("address", ["11.1.2.3", "::ffff:11.1.2.3", "2001:db9::7", "::1", "", "unix:", None])
async def test_used_from_elsewhere_it_is_a_key_like_any_wrong_one(door: Door, address: str | None) -> None:
    key = await door.knows(addresses=("10.0.0.0/8", "2001:db8::/32"))
    await door.enter(key, "10.0.0.1")  # remembered, and judged at each use
    with pytest.raises(InvalidKey):
        await door.enter(key, address)
    assert door.store.num_asked == 1


async def test_a_key_without_addresses_works_from_an_unknown_one(door: Door) -> None:
    assert (await door.enter(await door.knows(), None)).tenant == a_tenant()


async def test_from_elsewhere_nothing_is_told_of_the_tenant(door: Door) -> None:
    await door.store.create_tenant(switched_off(a_tenant()), BY)
    key = await door.knows(addresses=("10.0.0.0/8",))
    with pytest.raises(InvalidKey):
        await door.enter(key, "192.0.2.1")
    with pytest.raises(DisabledTenant):
        await door.enter(key, "10.0.0.1")


async def test_a_disabled_tenant_is_told_apart_from_a_bad_key(door: Door) -> None:
    await door.store.create_tenant(switched_off(a_tenant()), BY)
    key = await door.knows()
    with pytest.raises(DisabledTenant):
        await door.enter(key)


async def test_an_account_of_before_is_told_again_as_it_is_now(door: Door) -> None:
    account = await door.enter(await door.knows())
    assert await door.auth.again(account) == account
    assert door.store.num_asked == 1
    await door.store.put_tenant(switched_off(account.tenant), None, BY)
    door.clock.advance(0.6)
    with pytest.raises(DisabledTenant):
        await door.auth.again(account)
    await door.store.delete_tenant("acme", None, BY)
    door.clock.advance(0.6)
    with pytest.raises(InvalidKey):
        await door.auth.again(account)


async def test_many_who_want_one_key_ask_once(door: Door) -> None:
    key = await door.knows()
    door.store.gate.clear()
    attempts = [asyncio.create_task(door.enter(key)) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    door.store.gate.set()
    accounts = await asyncio.gather(*attempts)
    assert {account.tenant.tenant_id for account in accounts} == {"acme"}
    assert door.store.num_asked == 1


async def test_who_leaves_does_not_end_the_question_for_the_others(door: Door) -> None:
    key = await door.knows()
    door.store.gate.clear()
    first, second = (asyncio.create_task(door.enter(key)) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    door.store.gate.set()
    assert (await second).tenant == a_tenant()
    assert first.cancelled() or await asyncio.gather(first, return_exceptions=True)
    assert door.store.num_asked == 1


async def test_without_the_store_a_good_key_works_for_the_grace_and_is_counted(door: Door) -> None:
    key = await door.knows()
    await door.enter(key)
    door.store.is_away = True
    door.clock.advance(GRACE_S - 0.1)
    assert (await door.enter(key)).tenant == a_tenant()
    assert door.num_stale == 1
    door.clock.advance(0.1)
    with pytest.raises(StoreUnavailable):
        await door.enter(key)


async def test_without_the_store_a_key_that_was_unknown_is_not_condemned(door: Door) -> None:
    key = new_key()
    with pytest.raises(InvalidKey):
        await door.enter(key)
    door.store.is_away = True
    door.clock.advance(0.5)
    with pytest.raises(StoreUnavailable):
        await door.enter(key)


async def test_an_emptied_record_condemns_no_key(door: Door) -> None:
    key = await door.knows()
    await door.enter(key)
    door.store.is_away = True
    door.store.trouble = "empty"
    door.clock.advance(1)
    assert (await door.enter(key)).tenant == a_tenant()


async def test_a_failed_question_is_asked_again_by_the_next(door: Door) -> None:
    key = await door.knows()
    door.store.is_away = True
    with pytest.raises(StoreUnavailable):
        await door.enter(key)
    door.store.is_away = False
    await door.enter(key)
