"""What a quantised model may cost, said once for each precision.

Against the same file unquantised, both in the same type (measured figures: `engine/NOTES.md`). Perplexity
and greedy agreement say what answers may lose; a model that loses more, as small ones do in 4 bits, is not
for that precision. Draws are another matter: one number picks from two lists in order of chance, so at higher
temperatures a single swap of ranks moves many draws, and their bounds only tell a wrong model from a rounded
one. They lie below what SmolLM2-135M reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bound:
    perplexity_ratio: float
    """Quantised over unquantised, at most."""
    greedy_agreement: float
    """Share of the text's positions with the same likeliest token, at least."""
    sampled_agreement: Mapping[float, float]
    """By temperature: share of draws that are equal behind the same words, at least; mean over seeds."""


BOUNDS = {
    "int8": Bound(
        perplexity_ratio=1.02, greedy_agreement=0.95, sampled_agreement={0.0: 0.95, 0.7: 0.75, 1.0: 0.5}
    ),
    "int4": Bound(
        perplexity_ratio=1.15, greedy_agreement=0.80, sampled_agreement={0.0: 0.75, 0.7: 0.45, 1.0: 0.2}
    ),
    "stored": Bound(
        perplexity_ratio=1.001, greedy_agreement=0.995, sampled_agreement={0.0: 0.995, 0.7: 0.99, 1.0: 0.99}
    ),
}
"""By quantization. `stored` loses nothing: what it may differ by are ties of rounding."""


def misses(row: dict[str, Any], bound: Bound) -> Iterator[str]:
    """Each figure of a row that is beyond its bound, in words."""
    name = row["quantization"]
    if not row["perplexity_ratio"] <= bound.perplexity_ratio:
        yield f"{name}: perplexity × {row['perplexity_ratio']}, allowed × {bound.perplexity_ratio}"
    if not row["greedy_agreement"] >= bound.greedy_agreement:
        yield f"{name}: greedy agreement {row['greedy_agreement']}, required {bound.greedy_agreement}"
    for told in row["sampled"]:
        mean, temperature = told["agreement"]["mean"], told["temperature"]
        required = bound.sampled_agreement[temperature]
        if not mean >= required:
            yield f"{name}: agreement {mean} at temperature {temperature}, required {required}"
