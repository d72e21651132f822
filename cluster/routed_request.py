"""One request on its way: what it asks for, what replicas may have cached of it, how it fared so far."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cluster.attempts import Attempts
from cluster.generation import GenerationRequest
from cluster.prompt_chains import PromptChains


class RoutedRequest:
    """Made once a request; from then on only the dispatcher changes it."""

    def __init__(self, asked: GenerationRequest, chains: PromptChains, claims: Mapping[int, int]) -> None:
        self.asked = asked
        self.chains = chains
        self.claims = claims
        """Blocks of the prompt that each incarnation claims, as looked up when the request came."""
        self.attempts = Attempts()
        self.wake = asyncio.Event()
        """Set when one of its inboxes has something to read."""
        self.hash_root: bytes | None = None
        """Of the revision that it began with."""
        self.predicted_cached_tokens = 0
        """Of the last submission."""
        self.waited_s = 0.0
        """At this gateway, until its turn came."""
        self.turn_s = 0.0
        """When that was, on the dispatcher's clock."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.asked.prompt_token_ids)
