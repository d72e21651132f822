"""The identity of a weights file, cheap enough to take at every start."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

READ_WHOLE_BYTES = 512 * 2**20
"""Files up to this size are read whole: about a second for the largest."""
PAGE_BYTES = 4096
STRIDE_BYTES = 256 * 1024


def weights_digest(data: npt.NDArray[np.uint8], header_bytes: int) -> str:
    """Identity of a weights file: 32 hex digits.

    Of a file beyond `READ_WHOLE_BYTES` it covers the header, the size and a page of every
    `STRIDE_BYTES`: another training, or an adapter merged into any matrix, is another digest; a change
    that stays between two pages is not told apart.
    """
    state = blake2b(len(data).to_bytes(8, "little"), digest_size=16)
    view = data.data  # hashed where it is mapped, without a copy
    if len(view) <= READ_WHOLE_BYTES:
        state.update(view)
        return state.hexdigest()
    state.update(view[:header_bytes])
    for start in range(header_bytes, len(view), STRIDE_BYTES):
        state.update(view[start : start + PAGE_BYTES])
    state.update(view[-PAGE_BYTES:])
    return state.hexdigest()
