"""Prompts of one customer, from a seed: something in common, and each its own rest."""

from __future__ import annotations

from random import Random

from engine.block_hash import hash_blocks
from engine.config import BLOCK_SIZE
from loadtest.fleet.call import Ask, Customer

Range = tuple[int, int]
"""The least and the most."""


class Prompts:
    """Owns which tokens were used: no two prompts have more in common than `shared_tokens`."""

    def __init__(
        self,
        customer: Customer,
        seed: int,
        *,
        shared_tokens: int = 0,
        own_tokens: Range,
        output_tokens: Range,
        timeout_s: float = float("inf"),
    ) -> None:
        self.customer = customer
        self._rng = Random(f"{seed}:{customer.tenant_id}")
        self._shared = tuple(range(shared_tokens))
        self._shared_hashes = hash_blocks(customer.root, self._shared, BLOCK_SIZE)
        self._own_tokens = own_tokens
        self._output_tokens = output_tokens
        self._timeout_s = timeout_s
        self._next_token = shared_tokens

    def make(self, number: int) -> Ask:
        """`number` is the ask's, and no other's in its fleet."""
        num_own = self._rng.randint(*self._own_tokens)
        token_ids = self._shared + tuple(range(self._next_token, self._next_token + num_own))
        self._next_token += num_own
        return Ask(
            number,
            self.customer,
            token_ids,
            self._rng.randint(*self._output_tokens),
            self._shared_hashes,
            self._timeout_s,
        )
