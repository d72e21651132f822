"""The identity of a weights file, cheap enough to take at every start."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

_PAGE_BYTES = 4096
_NUM_PAGES = 256


def sampled_digest(data: npt.NDArray[np.uint8], header_bytes: int) -> str:
    """Identity of a weights file without reading it all: 32 hex digits.

    Covers the whole header, the file's size and 256 pages of 4 KiB spread evenly over the data, first
    and last included. Trained weights differ nearly everywhere, so another training is another digest;
    a file patched by hand in a few bytes outside these pages is not told apart.
    """
    state = blake2b(digest_size=16)
    state.update(len(data).to_bytes(8, "little"))
    state.update(data[:header_bytes].tobytes())
    last_page = max(len(data) - _PAGE_BYTES, header_bytes)
    for start in np.linspace(header_bytes, last_page, _NUM_PAGES).astype(np.int64):
        state.update(data[start : start + _PAGE_BYTES].tobytes())
    return state.hexdigest()
