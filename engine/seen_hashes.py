"""Which blocks were ever cached, in bounded memory."""

from __future__ import annotations

from array import array

from engine.block_hash import BlockHash


class SeenHashes:
    """Owns a table of 8-byte digests, one slot each; in a full table the newer takes an older one's slot.

    So it may forget, and (but for one chance in 2^64) never claims what was not added. O(1); 8 bytes a
    slot, all of them at the start. `num_slots` is rounded up to a power of two.
    """

    def __init__(self, num_slots: int) -> None:
        self._slots = array("Q", [0]) * (1 << (num_slots - 1).bit_length())

    def add(self, block_hash: BlockHash) -> None:
        slot, digest = self._place(block_hash)
        self._slots[slot] = digest

    def discard(self, block_hash: BlockHash) -> None:
        slot, digest = self._place(block_hash)
        if self._slots[slot] == digest:
            self._slots[slot] = 0

    def __contains__(self, block_hash: BlockHash) -> bool:
        slot, digest = self._place(block_hash)
        return self._slots[slot] == digest

    def clear(self) -> None:
        self._slots = array("Q", [0]) * len(self._slots)

    def _place(self, block_hash: BlockHash) -> tuple[int, int]:
        digest = int.from_bytes(block_hash[:8], "little") or 1  # 0 marks an empty slot
        return digest & (len(self._slots) - 1), digest
