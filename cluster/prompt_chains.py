"""The block hashes of one prompt, once for each live revision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cluster.link import Hello
from cluster.public_prefixes import NO_PREFIXES, PublicPrefixes
from engine.block_chain import Branch
from engine.block_hash import BlockHash, branch_root, hash_blocks, public_root, tenant_root
from engine.config import BLOCK_SIZE


class Chain(NamedTuple):
    root: BlockHash
    """Of the revision and the tenant; of a prompt that begins with a public prefix, of the revision alone."""
    block_hashes: tuple[BlockHash, ...]
    branch: Branch | None = None
    """Where the public prefix ends and the tenant's own blocks begin."""


class PromptChains:
    """Hashes with the root that a replica's hello names. `salt` is the tenant's.

    Hashing takes about 2 µs a block: off the event loop for long prompts.
    """

    def __init__(
        self, prompt_token_ids: tuple[int, ...], salt: bytes, public: PublicPrefixes = NO_PREFIXES
    ) -> None:
        self.prompt_token_ids = prompt_token_ids
        self._salt = salt
        self._public = public
        self._block_size = BLOCK_SIZE
        """As the last hello named it."""
        self._chains: dict[bytes, Chain] = {}

    def of(self, hello: Hello) -> Chain:
        chain = self._chains.get(hello.hash_root)
        if chain is None:
            num_public = self._public.num_blocks(self.prompt_token_ids, hello.block_size)
            chain = self._branched(hello, num_public) if num_public else self._own(hello)
            self._chains[hello.hash_root] = chain
            self._block_size = hello.block_size
        return chain

    def hashed(self, hash_root: bytes) -> tuple[BlockHash, ...]:
        """The block hashes of a revision that was asked for before; else none."""
        chain = self._chains.get(hash_root)
        return () if chain is None else chain.block_hashes

    def beginning(self, num_blocks: int) -> PromptChains:
        """Of its first blocks. A public prefix stays whole: what lacks its end would be the tenant's own."""
        block_size = self._block_size
        num_blocks = max(num_blocks, self._public.num_blocks(self.prompt_token_ids, block_size))
        part = PromptChains(self.prompt_token_ids[: num_blocks * block_size], self._salt, self._public)
        part._block_size = block_size
        part._chains = {
            root: chain._replace(block_hashes=chain.block_hashes[:num_blocks])
            for root, chain in self._chains.items()
        }
        return part

    def prepare(self, hellos: Iterable[Hello]) -> None:
        for hello in hellos:
            self.of(hello)

    def _own(self, hello: Hello) -> Chain:
        root = tenant_root(hello.hash_root, self._salt)
        return Chain(root, hash_blocks(root, self.prompt_token_ids, hello.block_size))

    def _branched(self, hello: Hello, num_public: int) -> Chain:
        """One chain, so that the prefix index knows both parts under one root."""
        root, end = public_root(hello.hash_root), num_public * hello.block_size
        public = hash_blocks(root, self.prompt_token_ids[:end], hello.block_size)
        branch = Branch(num_public, branch_root(public[-1], self._salt))
        own = hash_blocks(branch.root, self.prompt_token_ids[end:], hello.block_size)
        return Chain(root, public + own, branch)
