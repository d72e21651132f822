"""The full blocks of a sequence: named in order, as they fill, the same whoever hashes them."""

from __future__ import annotations

import pytest

from engine.block_chain import BlockChain, Branch, NamedBlock
from engine.block_hash import hash_block, hash_blocks, pack_token_ids
from tests.builders import ROOT


def test_a_block_says_what_it_stands_for() -> None:
    first, second = BlockChain(ROOT, range(9), 4)
    assert first == NamedBlock(hash_block(ROOT, range(4)), ROOT, 0, pack_token_ids(range(4)), ROOT)
    assert second == NamedBlock(
        hash_block(first.block_hash, range(4, 8)),
        first.block_hash,
        1,
        pack_token_ids(range(4, 8)),
        first.block_hash,
    )


def test_it_grows_with_the_sequence() -> None:
    tokens = list(range(7))
    chain = BlockChain(ROOT, tokens, 4)
    assert (len(chain), len(list(chain))) == (1, 1)
    with pytest.raises(IndexError, match="block 1 of 1 full ones"):
        chain[1]
    tokens.append(7)
    assert [block.block_hash for block in chain] == list(hash_blocks(ROOT, range(8), 4))
    assert chain[1].token_ids == pack_token_ids([4, 5, 6, 7])


def test_it_may_grow_while_it_is_read() -> None:
    chain = BlockChain(ROOT, range(12), 4)
    reading = iter(chain)
    first = next(reading)
    assert chain[2].depth == 2
    assert [first, *reading] == [chain[0], chain[1], chain[2]]


def test_known_hashes_are_taken_and_the_chain_continues_from_them() -> None:
    first, second = BlockChain(ROOT, range(8), 4, hashes=[b"told"])
    assert (first.block_hash, second.parent) == (b"told", b"told")
    assert second.block_hash == hash_block(b"told", range(4, 8))


def test_a_fork_goes_its_own_way() -> None:
    tokens, others = list(range(6)), list(range(6))
    chain = BlockChain(ROOT, tokens, 4)
    first = chain[0]
    fork = chain.fork(others)
    tokens += [6, 7]
    others += [8, 9]
    assert fork[0] is first
    assert chain[1].token_ids == pack_token_ids([4, 5, 6, 7])
    assert fork[1].token_ids == pack_token_ids([4, 5, 8, 9])


def test_behind_a_public_prefix_the_chain_goes_on_from_the_branch() -> None:
    tokens = list(range(9))
    chain = BlockChain(ROOT, tokens, 4, branch=Branch(1, b"branch"))
    public, own = chain
    assert (public.parent, public.kin) == (ROOT, ROOT)
    assert (own.parent, own.kin) == (public.block_hash, b"branch")
    assert own.block_hash == hash_block(b"branch", range(4, 8))
    tokens += [9, 10, 11]
    assert (chain[2].parent, chain[2].kin) == (own.block_hash, own.block_hash)


def test_a_fork_leaves_the_public_prefix_where_its_chain_does() -> None:
    fork = BlockChain(ROOT, range(4), 4, branch=Branch(1, b"branch")).fork(range(8))
    assert fork[1].kin == b"branch"
