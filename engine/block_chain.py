"""The full blocks of one sequence of tokens, each with its name and what it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from engine.block_hash import BlockHash, hash_block, pack_token_ids


class Branch(NamedTuple):
    """Where a chain leaves a public prefix and becomes its tenant's own."""

    num_public_blocks: int
    """At least 1."""
    root: bytes
    """As `branch_root` makes it."""


class NamedBlock(NamedTuple):
    """A full block's content under its name. Two are equal only if all that they say is.

    About 250 bytes at 16 tokens: the token ids are packed, because a cache keeps many.
    """

    block_hash: BlockHash
    parent: bytes
    """Hash of the block before it; of the first block the root."""
    depth: int
    """Blocks before it."""
    token_ids: bytes
    """As `pack_token_ids` makes them."""
    kin: bytes
    """What it was hashed from beside its tokens: the parent, but the branch's root right behind a public
    prefix. So blocks of one kin are one tenant's, or public."""


class BlockChain:
    """Owns the names of a sequence's full blocks, and grows with the sequence as it is asked.

    `token_ids` is the owner's list, read only; tokens are appended to it and never changed.
    `hashes` are those already known of the first blocks: they are taken at their word. `branch`: the
    chain starts with a public prefix, and `root` is the public one.
    """

    def __init__(
        self,
        root: bytes,
        token_ids: Sequence[int],
        block_size: int,
        hashes: Iterable[bytes] = (),
        branch: Branch | None = None,
    ) -> None:
        self._root = root
        self._token_ids = token_ids
        self._block_size = block_size
        self._branch = branch
        self._hashes = [BlockHash(block_hash) for block_hash in hashes]
        self._blocks: list[NamedBlock] = []

    def __len__(self) -> int:
        return len(self._token_ids) // self._block_size

    def __getitem__(self, index: int) -> NamedBlock:
        """The `index`-th block. Raises IndexError for one that is not full yet."""
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)} full ones")
        while len(self._blocks) <= index:
            self._blocks.append(self._next_block())
        return self._blocks[index]

    def __iter__(self) -> Iterator[NamedBlock]:
        """From the first; blocks are named as they are taken."""
        yield from self._blocks
        for index in range(len(self._blocks), len(self)):
            yield self[index]

    def _next_block(self) -> NamedBlock:
        index = len(self._blocks)
        token_ids = self._token_ids[index * self._block_size : (index + 1) * self._block_size]
        parent = self._blocks[-1].block_hash if self._blocks else self._root
        kin = self._branch.root if self._branch and self._branch.num_public_blocks == index else parent
        if index == len(self._hashes):
            self._hashes.append(hash_block(kin, token_ids))
        return NamedBlock(self._hashes[index], parent, index, pack_token_ids(token_ids), kin)

    def fork(self, token_ids: Sequence[int]) -> BlockChain:
        """The chain of another sequence that begins with all of this one's tokens."""
        fork = BlockChain(self._root, token_ids, self._block_size, self._hashes, self._branch)
        fork._blocks = list(self._blocks)
        return fork
