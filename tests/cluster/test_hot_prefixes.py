"""What prompts have in common: found where two of them share it, faded with time, in bounded room."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.hot_prefixes import HALF_LIFE_S, KEPT_FOR_S, MAX_KEPT, MAX_SEEN, MAX_TOKENS, SHARED, HotPrefixes
from cluster.index.prefix_index import INDEX_EVERY, indexed
from cluster.prompt_chains import PromptChains
from cluster.public_prefixes import NO_PREFIXES, PublicPrefixes
from tests.cluster.fake_replica import hello

BLOCK_SIZE = 16
AT_ONCE = 0.0


class Blocks(NamedTuple):
    """A prompt of which only its blocks' hashes are known."""

    hashes: tuple[bytes, ...]

    def beginning(self, num_blocks: int) -> Blocks:
        return Blocks(self.hashes[:num_blocks])


def a_prompt(name: str, num_blocks: int, *shared: tuple[str, int]) -> Blocks:
    """Its own blocks behind those of `shared`: (whose, up to which block)."""
    hashes: list[str] = []
    for whose, end in (*shared, (name, num_blocks)):
        hashes += [f"{whose} {index}" for index in range(len(hashes), end)]
    return Blocks(tuple(map(str.encode, hashes)))


def note(hot: HotPrefixes[Blocks], prompt: Blocks, now: float = AT_ONCE, *, times: int = 1) -> None:
    for _ in range(times):
        hot.note(prompt, indexed(prompt.hashes), now)


def hottest(hot: HotPrefixes[Blocks], count: int = 8, least: float = 2, now: float = AT_ONCE) -> list[str]:
    """The last block of each."""
    return [one.hashes[-1].decode() for one in hot.hottest(count, least, now)]


@pytest.fixture
def hot() -> HotPrefixes[Blocks]:
    return HotPrefixes()


class TestWhatIsShared:
    def test_is_what_two_requests_begin_with_in_whole_indexed_blocks(self, hot: HotPrefixes[Blocks]) -> None:
        note(hot, a_prompt("x", 40, ("s", 22)))
        assert hottest(hot) == []
        note(hot, a_prompt("y", 40, ("s", 22)))
        assert hottest(hot) == ["s 19"]

    def test_is_nothing_of_what_one_request_alone_has(self, hot: HotPrefixes[Blocks]) -> None:
        for number in range(20):
            note(hot, a_prompt(f"x{number}", 40))
        assert len(hot) == 0

    def test_is_nothing_below_an_indexed_block(self, hot: HotPrefixes[Blocks]) -> None:
        note(hot, a_prompt("x", 40, ("s", 3)))
        note(hot, a_prompt("y", 40, ("s", 3)))
        note(hot, a_prompt("z", 3), times=2)
        assert (len(hot), hot.num_seen) == (0, 20)

    def test_is_the_longest_of_several(self, hot: HotPrefixes[Blocks]) -> None:
        note(hot, a_prompt("x", 40, ("s", 8), ("t", 24)))
        note(hot, a_prompt("y", 40, ("s", 8)))
        note(hot, a_prompt("z", 40, ("s", 8), ("t", 24)))
        assert hottest(hot) == ["t 23"]

    def test_is_the_whole_prompt_only_if_that_came_twice(self, hot: HotPrefixes[Blocks]) -> None:
        note(hot, a_prompt("x", 12), times=2)
        assert hottest(hot) == ["x 11"]

    def test_is_cut_where_it_would_be_too_long(self, hot: HotPrefixes[Blocks]) -> None:
        note(hot, a_prompt("x", 1000), times=2)
        (one,) = hot.hottest(1, 2, AT_ONCE)
        assert len(one.hashes) * BLOCK_SIZE == MAX_TOKENS

    def test_must_have_come_within_a_half_life(self, hot: HotPrefixes[Blocks]) -> None:
        note(hot, a_prompt("x", 8), now=0.0)
        note(hot, a_prompt("x", 8), now=HALF_LIFE_S + 0.1)
        assert len(hot) == 0
        note(hot, a_prompt("x", 8), now=2 * HALF_LIFE_S)
        assert len(hot) == 1

    def test_is_all_that_is_kept(self, hot: HotPrefixes[Blocks]) -> None:
        for name in "xy":
            note(hot, a_prompt(name, 1000, ("s", 20)))
        assert [len(one.prompt.hashes) for one in hot._kept.values()] == [20]


class TestTheHottest:
    def test_are_those_with_the_most_tokens_times_requests(self, hot: HotPrefixes[Blocks]) -> None:
        note(hot, a_prompt("often", 8), times=5)
        note(hot, a_prompt("long", 40), times=2)
        note(hot, a_prompt("both", 20), times=3)
        assert hottest(hot) == ["long 39", "both 19", "often 7"]
        assert hottest(hot, 2) == ["long 39", "both 19"]
        assert hottest(hot, 0) == []

    def test_count_a_common_part_once(self, hot: HotPrefixes[Blocks]) -> None:
        for name in "abcd":
            note(hot, a_prompt(name, 24, ("s", 20)), times=10)
        note(hot, a_prompt("other", 8), times=6)
        assert hottest(hot, 2) == ["a 23", "other 7"]

    def test_end_where_too_few_have_them(self, hot: HotPrefixes[Blocks]) -> None:
        for name in "abcd":
            note(hot, a_prompt(name, 24, ("s", 20)), times=3)
        assert hottest(hot, least=4) == ["s 19"]
        assert hottest(hot, least=13) == []

    def test_fade(self, hot: HotPrefixes[Blocks]) -> None:
        note(hot, a_prompt("x", 8), times=4)
        assert hottest(hot, least=2, now=HALF_LIFE_S) == ["x 7"]
        assert hottest(hot, least=2, now=HALF_LIFE_S + 0.1) == []
        note(hot, a_prompt("x", 8), now=HALF_LIFE_S)
        assert hottest(hot, least=3, now=HALF_LIFE_S) == ["x 7"]

    def test_are_forgotten_when_they_came_too_long_ago(self, hot: HotPrefixes[Blocks]) -> None:
        note(hot, a_prompt("x", 8), times=1000)
        assert hottest(hot, now=KEPT_FOR_S) == ["x 7"]
        assert hottest(hot, now=KEPT_FOR_S + 0.1) == []
        assert len(hot) == 0


class TestItsRoom:
    def test_is_so_many_prefixes_those_that_came_the_longest_ago_go(self) -> None:
        hot = HotPrefixes[Blocks](max_kept=2)
        for name in ("x", "y", "x", "z"):
            note(hot, a_prompt(name, 8), times=2)
        assert len(hot) == 2
        assert sorted(hottest(hot)) == ["x 7", "z 7"]

    def test_is_so_many_blocks_children_go_before_their_parents(self) -> None:
        hot = HotPrefixes[Blocks](max_seen=5)
        note(hot, a_prompt("x", 16))
        note(hot, a_prompt("y", 8))
        assert hot.num_seen == 5
        note(hot, a_prompt("z", 16, ("x", 12)))
        assert hottest(hot) == ["x 11"]

    def test_is_as_much_memory_as_is_said(self) -> None:
        """An eighth of what may be, with hashes and tokens of their own."""
        tracemalloc.start()
        hot = HotPrefixes[PromptChains]()
        for number in range(MAX_KEPT // 8):
            token_ids = tuple(range(number * MAX_TOKENS, (number + 1) * MAX_TOKENS))
            chains = chains_of(token_ids, b"salt")
            note_chains(hot, chains, chains)
        kept, _ = tracemalloc.get_traced_memory()
        for number in range(MAX_SEEN // 8):
            hot.note(chains, (b"a hash of 16 b %d" % number,), AT_ONCE)
        everything, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 8 * kept < 13 * 2**20
        assert 8 * (everything - kept) < 4 * 2**20


def chains_of(prompt: Sequence[int], salt: bytes, public: PublicPrefixes = NO_PREFIXES) -> PromptChains:
    return PromptChains(tuple(prompt), salt, public)


def note_chains(hot: HotPrefixes[PromptChains], *prompts: PromptChains) -> None:
    for prompt in prompts:
        hot.note(prompt, indexed(prompt.of(hello("a")).block_hashes), AT_ONCE)


class TestOfTenants:
    def test_the_same_prompt_of_two_is_shared_by_nobody(self) -> None:
        hot = HotPrefixes[PromptChains]()
        note_chains(hot, chains_of(range(200), b"one"), chains_of(range(200), b"other"))
        assert len(hot) == 0

    def test_each_has_what_is_hot_under_its_own_root(self) -> None:
        hot = HotPrefixes[PromptChains]()
        for salt in (b"one", b"other"):
            note_chains(hot, *(chains_of((*range(130), own, *range(90)), salt) for own in (7, 8)))
        roots = set()
        for part in hot.hottest(8, 2, AT_ONCE):
            chain = part.of(hello("a"))
            assert part.prompt_token_ids == tuple(range(128))
            assert chain == PromptChains(part.prompt_token_ids, part._salt).of(hello("a"))
            roots.add(chain.root)
        assert len(roots) == 2

    def test_another_revision_hashes_them_anew(self) -> None:
        hot = HotPrefixes[PromptChains]()
        note_chains(hot, *[chains_of(range(200), b"one")] * 2)
        (part,) = hot.hottest(8, 2, AT_ONCE)
        new = part.of(hello("b", b"another root"))
        assert new == chains_of(range(192), b"one").of(hello("b", b"another root"))

    def test_a_public_prefix_is_shared_by_all_and_never_cut(self) -> None:
        """Of its 6 blocks the index knows 4: a cut there would be the tenant's own, and used by nobody."""
        public = PublicPrefixes([range(96)])
        hot = HotPrefixes[PromptChains]()
        prompts = [
            chains_of((*range(96), own, *range(90)), salt, public) for own, salt in ((7, b"1"), (8, b"2"))
        ]
        note_chains(hot, *prompts)
        (part,) = hot.hottest(8, 2, AT_ONCE)
        assert part.prompt_token_ids == tuple(range(96))
        whole = prompts[0].of(hello("a"))
        assert part.of(hello("a")).block_hashes == whole.block_hashes[:6]
        assert part.of(hello("a")).root == whole.root


notes = st.tuples(
    st.sampled_from("xyz"), st.integers(0, 24), st.integers(0, 5), st.sampled_from([0.0, 1.0, 20.0, 70.0])
)


@given(history=st.lists(notes, max_size=25), count=st.integers(0, 4), least=st.sampled_from([1.5, 2.0, 3.5]))
def test_it_says_what_a_list_of_all_that_came_would_say(
    history: list[tuple[str, int, int, float]], count: int, least: float
) -> None:
    hot, now = HotPrefixes[Blocks](), 0.0
    came: list[tuple[tuple[bytes, ...], float]] = []

    def requests(block_hash: bytes) -> float:
        return sum(float(0.5 ** ((now - at) / HALF_LIFE_S)) for hashes, at in came if block_hash in hashes)

    kept: dict[bytes, tuple[Sequence[bytes], float]] = {}
    for name, num_blocks, shared, gap in history:
        now += gap
        prompt = a_prompt(name, num_blocks, ("s", min(4 * shared, num_blocks)))
        note(hot, prompt, now)
        came.append((prompt.hashes, now))
        common = [one for one in indexed(prompt.hashes) if requests(one) >= SHARED - 1e-9]
        if common:
            kept[common[-1]] = common, now
    kept = {last: one for last, one in kept.items() if now - one[1] <= KEPT_FOR_S}
    assert len(hot) == len(kept)

    covered: set[bytes] = set()
    chosen = hot.hottest(count, least, now)
    for part in chosen:
        worths = [_worth(path, covered, requests, least) for path, _ in kept.values()]
        path = indexed(part.hashes)
        assert _worth(path, covered, requests, least) == pytest.approx(max(worths))
        assert all(requests(one) >= least - 1e-9 for one in path)
        assert len(part.hashes) % INDEX_EVERY == 0
        covered.update(path)
    if len(chosen) < count:
        assert all(_worth(path, covered, requests, least + 1e-9) == 0 for path, _ in kept.values())


def _worth(path: Sequence[bytes], covered: set[bytes], requests: object, least: float) -> float:
    assert callable(requests)
    counts = (requests(one) for one in path if one not in covered)
    return sum(count for count in counts if count >= least - 1e-9)
