"""What becomes of named blocks, told to whoever keeps account of them outside of the engine."""

from __future__ import annotations

from engine.block_chain import NamedBlock


class BlockListener:
    """Hears nothing; derived classes do. Called by the engine thread, in the order in which it happens: from
    the events alone one knows at any time which names the prefix cache holds.

    A block is stored after its parent and evicted after its children; the same block may come again.
    No method may raise or wait.
    """

    def stored(self, root: bytes, block: NamedBlock) -> None:
        """The block, of a chain that starts at `root`, can be shared from now on."""

    def evicted(self, block: NamedBlock) -> None:
        """It is reused for something else, or is not what its name says."""

    def cleared(self) -> None:
        """No block has a name any more."""


NOBODY = BlockListener()
