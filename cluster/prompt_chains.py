"""The block hashes of one prompt, once for each live revision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cluster.link import Hello
from engine.block_hash import BlockHash, hash_blocks, tenant_root


class Chain(NamedTuple):
    root: BlockHash
    """Of the revision and the tenant."""
    block_hashes: tuple[BlockHash, ...]


class PromptChains:
    """Hashes with the root that a replica's hello names. `salt` is the tenant's.

    Hashing takes about 2 µs a block: off the event loop for long prompts.
    """

    def __init__(self, prompt_token_ids: tuple[int, ...], salt: bytes) -> None:
        self._prompt_token_ids = prompt_token_ids
        self._salt = salt
        self._chains: dict[bytes, Chain] = {}

    def of(self, hello: Hello) -> Chain:
        chain = self._chains.get(hello.hash_root)
        if chain is None:
            root = tenant_root(hello.hash_root, self._salt)
            chain = Chain(root, hash_blocks(root, self._prompt_token_ids, hello.block_size))
            self._chains[hello.hash_root] = chain
        return chain

    def prepare(self, hellos: Iterable[Hello]) -> None:
        for hello in hellos:
            self.of(hello)
