"""Whatever happens on the way, the index comes to say what the replica holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.index import digest_round
from cluster.index import publisher as prefix_publisher
from cluster.index.block_news import Cleared, Evicted, Stored
from cluster.index.digest_round import ROUND_S
from tests.cluster.publisher_rig import Rig

Op = tuple[str, int]
_calm = ("store", "store", "evict", "tick", "tick", "clear")
_rough = (*_calm, "lose", "invent", "flush", "down", "up", "wait")


def _ops(kinds: tuple[str, ...]) -> st.SearchStrategy[list[Op]]:
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 2)), max_size=60)


class Chains:
    """Blocks as an engine holds them: parent stored first, child evicted first."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.depths = [0, 0, 0]

    @property
    def held(self) -> set[tuple[bytes, bytes]]:
        return {_block(chain, depth) for chain, most in enumerate(self.depths) for depth in range(most)}

    def is_closed(self) -> bool:
        """Whether the index says of no chain that a block is there and its parent is not."""
        depths = [
            [depth for depth in range(70) if _block(chain, depth) in self.rig.claims] for chain in range(3)
        ]
        return all(found == list(range(len(found))) for found in depths)

    def play(self, op: Op) -> None:
        kind, chain = op
        match kind:
            case "store":
                self.rig.take(Stored(*_block(chain, self.depths[chain])))
                self.depths[chain] += 1
            case "evict" if self.depths[chain]:
                self.depths[chain] -= 1
                self.rig.take(Evicted(_block(chain, self.depths[chain])[1]))
            case "clear":
                self.rig.take(Cleared())
                self.depths = [0, 0, 0]
            case "lose" if self.rig.claims:
                self.rig.claims.discard(sorted(self.rig.claims)[chain % len(self.rig.claims)])
            case "flush":
                self.rig.claims.clear()
                self._beat(was_alive=False)
            case "down" | "up":
                self.rig.is_down = kind == "down"
                self._beat(was_alive=True)
            case "wait":
                self.rig.run(4)
            case _:
                self.rig.tick()

    def _beat(self, *, was_alive: bool) -> None:
        if self.rig.is_down:
            self.rig.publisher.failed("down")
        else:
            self.rig.publisher.has_beaten(was_alive, self.rig.now)


def _block(chain: int, depth: int) -> tuple[bytes, bytes]:
    return b"root %d" % chain, b"%d/%d" % (chain, depth)


@pytest.fixture(scope="module")
def small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_publisher, "MAX_BATCH", 2)
        patch.setattr(digest_round, "MAX_BATCH", 2)
        patch.setattr(prefix_publisher, "MAX_QUEUED", 12)
        yield


@settings(max_examples=100)
@given(_ops(_rough))
def test_whatever_is_lost_the_index_is_right_again_after_the_next_rounds(
    small_batches: None, ops: list[Op]
) -> None:
    chains = Chains(rig := Rig.started())
    for op in ops:
        chains.play(op)
    chains.play(("up", 0))
    rig.run(3 * ROUND_S)
    assert rig.claims == chains.held
    assert rig.state == "exact"


@settings(max_examples=100)
@given(_ops(_calm))
def test_without_losses_a_claim_always_has_its_parent_s(small_batches: None, ops: list[Op]) -> None:
    chains = Chains(rig := Rig.started())
    for op in ops:
        chains.play(op)
        assert chains.is_closed()
    rig.run(10)
    assert rig.claims == chains.held
