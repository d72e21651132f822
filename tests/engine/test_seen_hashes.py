"""What was seen: never claimed wrongly, forgotten only where another took its slot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.block_hash import BlockHash
from engine.seen_hashes import SeenHashes

_hashes = st.binary(min_size=16, max_size=16).map(BlockHash)


def numbered(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(8, "little") + bytes(8))


def test_the_newer_takes_the_slot_of_an_older_one() -> None:
    seen = SeenHashes(4)
    for number in (1, 2, 5):
        seen.add(numbered(number))
    assert [number for number in range(10) if numbered(number) in seen] == [2, 5]


def test_the_slots_are_rounded_up_to_a_power_of_two() -> None:
    seen = SeenHashes(5)
    for number in range(1, 9):
        seen.add(numbered(number))
    assert all(numbered(number) in seen for number in range(1, 9))


def test_a_discarded_one_is_gone_and_only_that() -> None:
    seen = SeenHashes(4)
    seen.add(numbered(1))
    seen.discard(numbered(5))
    assert numbered(1) in seen
    seen.discard(numbered(1))
    assert numbered(1) not in seen


def test_a_cleared_one_has_seen_nothing() -> None:
    seen = SeenHashes(4)
    seen.add(numbered(1))
    seen.clear()
    assert numbered(1) not in seen
    seen.add(numbered(3))
    assert numbered(3) in seen


def test_the_hash_of_nothing_but_zeros_is_not_seen_in_an_empty_table() -> None:
    seen = SeenHashes(4)
    assert numbered(0) not in seen
    seen.add(numbered(0))
    assert numbered(0) in seen


@given(st.lists(_hashes, max_size=40), st.lists(_hashes, max_size=10), st.integers(1, 64))
def test_what_was_not_added_is_not_seen_and_the_last_added_is(
    added: list[BlockHash], others: list[BlockHash], num_slots: int
) -> None:
    seen = SeenHashes(num_slots)
    for block_hash in added:
        seen.add(block_hash)
        assert block_hash in seen
    digests = {block_hash[:8] for block_hash in added}
    assert all(other not in seen for other in others if other[:8] not in digests and any(other[:8]))
