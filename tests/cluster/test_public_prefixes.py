"""Public prefixes: all tenants share exactly their full blocks, and nothing behind them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.prompt_chains import PromptChains
from cluster.public_prefixes import PublicPrefixes
from engine.block_hash import branch_root, hash_blocks, public_root, tenant_root
from tenants.api_key import hash_key, new_key
from tenants.audit import LAUNCHER
from tests.builders_tenants import a_key, a_tenant
from tests.cluster.fakes import SECRET
from tests.cluster.in_process import InProcess, in_process, tape
from tests.cluster.tenants_on_one_engine import ANSWER, MODEL_ROOT, OneEngine, a_hello

PREFIX = tuple(range(100, 110))
"""Two full blocks of 4 tokens, and two tokens that count for nothing."""
FULL = PREFIX[:8]
PUBLIC = PublicPrefixes([PREFIX])


# --- which prompts begin with one --------------------------------------------------------------


def test_a_prompt_is_public_as_far_as_the_prefixs_full_blocks_go() -> None:
    assert PUBLIC.num_blocks((*PREFIX, 1, 2, 3), 4) == 2
    assert PUBLIC.num_blocks((*FULL, 1), 4) == 2
    assert PUBLIC.num_blocks(FULL, 4) == 2


@pytest.mark.parametrize(
    "prompt", [(), PREFIX[:7], (*PREFIX[:7], 1), (1, *PREFIX), (*PREFIX[:4], 1, *PREFIX)]
)
def test_a_prompt_that_lacks_a_part_of_it_shares_nothing(prompt: tuple[int, ...]) -> None:
    assert PUBLIC.num_blocks(prompt, 4) == 0


def test_a_prefix_shorter_than_a_block_makes_nothing_public() -> None:
    assert PublicPrefixes([(1, 2, 3)]).num_blocks((1, 2, 3, 4), 4) == 0


def test_the_longest_of_several_holds() -> None:
    public = PublicPrefixes([FULL[:4], (*FULL, 1, 2, 3, 4), FULL])
    assert public.num_blocks((*FULL, 1, 2, 3, 4, 5), 4) == 3
    assert public.num_blocks((*FULL, 1, 2, 3, 5), 4) == 2
    assert public.num_blocks((*FULL[:4], 9, 9, 9, 9), 4) == 1


@given(
    prefixes=st.lists(st.lists(st.integers(0, 1), max_size=9), max_size=5),
    prompt=st.lists(st.integers(0, 1), max_size=12),
    block_size=st.integers(1, 4),
)
def test_it_is_what_trying_every_prefix_finds(
    prefixes: list[list[int]], prompt: list[int], block_size: int
) -> None:
    full = [prefix[: len(prefix) // block_size * block_size] for prefix in prefixes]
    longest = max((len(one) for one in full if prompt[: len(one)] == one), default=0)
    assert PublicPrefixes(prefixes).num_blocks(prompt, block_size) == longest // block_size


# --- the chain of a prompt ----------------------------------------------------------------------


def test_a_chain_is_public_up_to_the_branch_and_the_tenants_own_behind() -> None:
    one = PromptChains((*FULL, *range(20)), b"salt a", PublicPrefixes([FULL])).of(a_hello())
    other = PromptChains((*FULL, *range(20)), b"salt b", PublicPrefixes([FULL])).of(a_hello())
    root = public_root(MODEL_ROOT)
    assert one.root == other.root == root
    assert one.block_hashes[:2] == other.block_hashes[:2] == hash_blocks(root, FULL, 4)
    assert set(one.block_hashes[2:]).isdisjoint(other.block_hashes[2:])
    assert one.branch == (2, branch_root(one.block_hashes[1], b"salt a"))
    assert one.block_hashes[2:] == hash_blocks(one.branch.root, range(20), 4)


def test_without_the_setting_a_chain_is_the_tenants_own_from_its_first_block() -> None:
    chain = PromptChains((*FULL, 1), b"salt").of(a_hello())
    assert chain == (tenant_root(MODEL_ROOT, b"salt"), hash_blocks(chain.root, (*FULL, 1), 4), None)


@given(salt=st.binary(max_size=64), root=st.binary(max_size=40))
def test_no_salt_leads_to_a_public_block_or_to_another_branch(salt: bytes, root: bytes) -> None:
    own = tenant_root(root, salt), tenant_root(root, b"public"), branch_root(root, salt)
    assert len({root, public_root(root), *own}) == 5 - (salt == b"public")


def test_each_revision_has_public_blocks_of_its_own() -> None:
    chains = PromptChains((*FULL, 1), b"salt", PublicPrefixes([FULL]))
    one, other = (chains.of(a_hello(root)).block_hashes for root in (b"r1", b"r2"))
    assert set(one).isdisjoint(other)


# --- on an engine -----------------------------------------------------------------------------


def test_two_tenants_share_exactly_the_public_blocks() -> None:
    engine = OneEngine(PUBLIC)
    tail = [1] * 13
    one, other = engine.ask("acme", [*FULL, *tail]), engine.ask("zeta", [*FULL, *tail])
    assert (one.cached_tokens, other.cached_tokens) == (0, 8)
    assert (len(one.foreign_blocks), len(other.foreign_blocks)) == (0, 2)
    assert engine.ask("acme", [*FULL, *tail]).cached_tokens == 20
    assert other.scheduled[0] == 13


def test_without_the_setting_they_share_none() -> None:
    engine = OneEngine()
    engine.ask("acme", [*PREFIX, 1])
    other = engine.ask("zeta", [*PREFIX, 1])
    assert (other.cached_tokens, other.foreign_blocks) == (0, set())


def test_output_right_behind_the_public_blocks_is_the_tenants_own() -> None:
    engine = OneEngine(PUBLIC)
    engine.ask("acme", FULL, max_tokens=8)
    assert engine.ask("acme", [*FULL, *ANSWER]).cached_tokens == 12
    assert engine.ask("zeta", [*FULL, *ANSWER]).cached_tokens == 8


def test_a_block_half_prompt_and_half_output_behind_them_is_the_tenants_own() -> None:
    engine = OneEngine(PUBLIC)
    engine.ask("acme", [*FULL, 1, 2], max_tokens=8)
    assert engine.ask("zeta", [*FULL, 1, 2, *ANSWER]).cached_tokens == 8


def test_siblings_continue_the_tenants_own_chain() -> None:
    engine = OneEngine(PUBLIC)
    engine.run(engine.request("acme", FULL, max_tokens=8, n=2))
    assert engine.ask("acme", [*FULL, *ANSWER]).cached_tokens == 12
    assert engine.ask("zeta", [*FULL, *ANSWER]).cached_tokens == 8


def test_a_request_that_resumes_finds_the_public_blocks_and_shares_nothing_behind() -> None:
    engine = OneEngine(PUBLIC)
    engine.ask("acme", FULL, max_tokens=8)
    (resumed,) = engine.run(engine.request("zeta", FULL, max_tokens=8, output=ANSWER[:6]))
    assert resumed.scheduled[0] == 6
    assert resumed.token_ids == list(ANSWER[6:])
    engine.run(engine.request("acme", FULL, max_tokens=8, output=ANSWER[:6]))
    assert engine.ask("zeta", [*FULL, *ANSWER]).cached_tokens == 12


def test_a_preempted_request_goes_on_behind_the_public_blocks_with_its_own() -> None:
    """Seven blocks for two requests that need five each, two of them the same."""
    engine = OneEngine(PUBLIC, num_blocks=8)
    requests = [engine.request(tenant, [*FULL, 1, 2, 3, 4], max_tokens=8) for tenant in ("acme", "zeta")]
    one, other = engine.run(*requests)
    engine.core.check_integrity()
    assert one.token_ids == other.token_ids == list(ANSWER)
    assert engine.core.counters().preemptions_total > 0


def test_the_last_public_block_is_shared_although_its_last_token_is_computed_again() -> None:
    engine = OneEngine(PUBLIC)
    engine.ask("acme", FULL)
    again = engine.ask("zeta", FULL)
    assert (again.cached_tokens, again.scheduled[0]) == (4, 4)


def test_the_public_prefix_of_one_revision_is_not_that_of_another() -> None:
    engine = OneEngine(PUBLIC)
    engine.ask("acme", [*FULL, 1])
    (served,) = engine.run(engine.request("acme", [*FULL, 1], root=b"another revision"))
    assert served.cached_tokens == 0


def test_a_longer_public_prefix_goes_on_from_a_shorter_one() -> None:
    longer = (*FULL, *range(50, 58))
    engine = OneEngine(PublicPrefixes([FULL, longer]))
    engine.ask("acme", [*FULL, 1, 2, 3, 4, 5])
    assert engine.ask("zeta", [*longer, 1]).cached_tokens == 8
    assert engine.ask("acme", [*longer, 1]).cached_tokens == 16


# --- at the gateway --------------------------------------------------------------------------


async def cached_tokens(gateway: InProcess, tenant_id: str, *prompts: str | list[int]) -> list[int]:
    """As usage tells them to a new tenant."""
    key = new_key()
    record = a_key(len(tenant_id), tenant_id=tenant_id, key_hash=hash_key(SECRET, key))
    await gateway.store.create_tenant(a_tenant(tenant_id, tier="unlimited"), LAUNCHER)
    await gateway.store.create_key(record, LAUNCHER)
    headers = {"authorization": f"Bearer {key}"}
    answers = [
        await gateway.post("/v1/completions", {"model": "tiny", "prompt": prompt}, headers=headers)
        for prompt in prompts
    ]
    return [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]


async def test_a_hit_on_a_public_prefix_counts_in_usage_as_cached() -> None:
    public = PublicPrefixes([b"You are a clerk."])
    prompt = "You are a clerk. Who am I?"
    async with in_process([tape({"*": ANSWER})], public=public) as gateway:
        assert await cached_tokens(gateway, "one", prompt, prompt) == [0, 24]
        assert await cached_tokens(gateway, "three", prompt, prompt, "You are a Clerk.") == [16, 24, 0]


async def test_output_right_behind_a_public_prefix_is_cached_for_its_tenant_alone() -> None:
    prompt = [*b"You are a clerk."]
    async with in_process([tape({"*": ANSWER})], public=PublicPrefixes([prompt])) as gateway:
        assert await cached_tokens(gateway, "one", prompt, [*prompt, *ANSWER, 1]) == [0, 24]
        assert await cached_tokens(gateway, "three", [*prompt, *ANSWER, 1]) == [16]


async def test_without_the_setting_no_tenant_has_anothers_prompt_cached() -> None:
    prompt = "You are a clerk. Who am I?"
    async with in_process([tape({"*": ANSWER})]) as gateway:
        assert await cached_tokens(gateway, "one", prompt, prompt) == [0, 24]
        assert await cached_tokens(gateway, "three", prompt, prompt) == [0, 24]
