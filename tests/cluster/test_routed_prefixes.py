"""What a gateway routed lately: whole chains, for two seconds, in bounded room."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.index.prefix_index import INDEX_EVERY, indexed
from cluster.routed_prefixes import REMEMBERED_S, UNLIKE_REQUESTS, RoutedPrefixes


def chain(name: str, num_blocks: int, *, shared: int = 0) -> list[bytes]:
    """Block hashes; the first `shared` are those of every chain."""
    return [b"shared %d" % index for index in range(shared)] + [
        b"%s %d" % (name.encode(), index) for index in range(shared, num_blocks)
    ]


def test_what_was_routed_is_known_to_be_there_and_nowhere_else() -> None:
    routed = RoutedPrefixes()
    routed.note("a", indexed(chain("x", 18)), now=0)
    assert routed.num_blocks("a", chain("x", 18), now=1) == 16
    assert routed.num_blocks("b", chain("x", 18), now=1) == 0
    assert routed.num_blocks("a", chain("y", 18), now=1) == 0


def test_only_the_common_beginning_counts() -> None:
    routed = RoutedPrefixes()
    routed.note("a", indexed(chain("x", 40, shared=21)), now=0)
    assert routed.num_blocks("a", chain("y", 40, shared=21), now=0) == 20
    assert routed.num_blocks("a", chain("y", 10, shared=10), now=0) == 8
    assert routed.num_blocks("a", chain("y", 3, shared=3), now=0) == 0
    assert routed.num_blocks("a", [], now=0) == 0


def test_it_is_forgotten_after_two_seconds() -> None:
    routed = RoutedPrefixes()
    routed.note("a", indexed(chain("x", 8)), now=10)
    assert routed.num_blocks("a", chain("x", 8), now=10 + REMEMBERED_S) == 8
    assert routed.num_blocks("a", chain("x", 8), now=10.001 + REMEMBERED_S) == 0
    assert len(routed) == 0


def test_routed_again_it_is_remembered_from_then_on_but_not_what_lies_deeper() -> None:
    routed = RoutedPrefixes()
    routed.note("a", indexed(chain("x", 16, shared=8)), now=0)
    routed.note("a", indexed(chain("y", 8, shared=8)), now=1)
    assert routed.num_blocks("a", chain("x", 16, shared=8), now=2) == 16
    assert routed.num_blocks("a", chain("x", 16, shared=8), now=3) == 8


def test_a_prompt_without_an_indexed_block_leaves_no_trace() -> None:
    routed = RoutedPrefixes()
    routed.note("a", indexed(chain("x", 3)), now=0)
    assert len(routed) == 0
    assert routed.num_blocks("a", chain("x", 3), now=0) == 0


def test_a_replica_that_is_gone_is_forgotten() -> None:
    routed = RoutedPrefixes()
    routed.note("a", indexed(chain("x", 8)), now=0)
    routed.note("b", indexed(chain("x", 8)), now=0)
    routed.forget("a")
    routed.forget("never heard of")
    assert routed.num_blocks("a", chain("x", 8), now=0) == 0
    assert routed.num_blocks("b", chain("x", 8), now=0) == 8
    assert len(routed) == 2


def test_beyond_its_bound_the_oldest_chains_go_whole() -> None:
    routed = RoutedPrefixes(max_hashes=10)
    for number in range(5):
        routed.note("a", indexed(chain(str(number), 16)), now=0)
    known = [routed.num_blocks("a", chain(str(number), 16), now=0) for number in range(5)]
    assert known == [0, 0, 0, 16, 16]
    assert len(routed) == 8


def test_a_chain_longer_than_the_bound_is_still_known() -> None:
    routed = RoutedPrefixes(max_hashes=2)
    routed.note("a", indexed(chain("x", 400)), now=0)
    assert routed.num_blocks("a", chain("x", 400), now=0) == 400


def test_the_share_counts_who_begins_alike_on_all_replicas() -> None:
    routed = RoutedPrefixes()
    for number in range(6):
        routed.note("ab"[number % 2], indexed(chain(str(number), 16, shared=8)), now=0)
    routed.note("c", indexed(chain("other", 16)), now=0)
    asked = chain("0", 16, shared=8)
    assert routed.share(asked, 8, now=1) == 6 / (7 + UNLIKE_REQUESTS)
    assert routed.share(asked, 16, now=1) == 1 / (7 + UNLIKE_REQUESTS)
    assert routed.share(asked, 11, now=1) == routed.share(asked, 8, now=1)


def test_nothing_cached_and_nothing_routed_is_no_share() -> None:
    routed = RoutedPrefixes()
    assert routed.share(chain("x", 8), 8, now=0) == 0
    routed.note("a", indexed(chain("x", 8)), now=0)
    assert routed.share(chain("x", 8), 3, now=0) == 0
    assert routed.share(chain("x", 8), 8, now=3) == 0


notes = st.tuples(
    st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 24), st.sampled_from([0, 0.5, 1.5])
)


@given(history=st.lists(notes, max_size=30), shared=st.integers(0, 24))
def test_it_says_what_a_list_of_all_that_was_routed_would_say(
    history: list[tuple[str, str, int, float]], shared: int
) -> None:
    routed, now = RoutedPrefixes(), 0.0
    noted: list[tuple[str, list[bytes], float]] = []
    for replica_id, name, num_blocks, gap in history:
        now += gap
        block_hashes = chain(name, num_blocks, shared=min(shared, num_blocks))
        routed.note(replica_id, indexed(block_hashes), now)
        noted.append((replica_id, block_hashes, now))
    for name in "xyz":
        asked = chain(name, 24, shared=shared)
        for replica_id in "ab":
            alive = [
                hashes for at_id, hashes, at in noted if at_id == replica_id and now - at <= REMEMBERED_S
            ]
            expected = max((_common(asked, hashes) for hashes in alive), default=0)
            assert routed.num_blocks(replica_id, asked, now) == expected


def _common(one: list[bytes], other: list[bytes]) -> int:
    same = sum(a == b for a, b in zip(one, other, strict=False))
    return same - same % INDEX_EVERY
