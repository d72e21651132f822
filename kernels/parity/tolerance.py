"""How far an output may be from its reference: stated once for each type, for every op.

With e = output - reference, both in float64: ‖e‖ ≤ relative · ‖reference‖ over the whole output, and no
element of e above `SPIKE` · relative · max |reference|. The first says that the op is right, the second
that no few elements are wrong among many. Integers must be equal.

One exception: a drawn token may be another one at a near tie, where a border of cumulative probability is
nearer than 1e-5 to what it is compared with: to the number drawn, or to top-p. Which rows these are must be
told alike by the op and its reference, and they are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RELATIVE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
"""About four roundings of the type (eps / 2) for the halves, where each result is rounded once or twice;
float32 has sums of thousands of terms to bear."""
SPIKE = 2.0
"""Noise has its peak about as far out as the values have theirs: the norm's bound times this holds it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How two outputs differ. `index` is where: the first element out of bounds, else the worst one; None
    if they are equal."""

    relative: float
    """‖output - reference‖ / ‖reference‖."""
    max_abs: float
    """max |output - reference| / max |reference|."""
    index: tuple[int, ...] | None
    reason: str | None
    """Why it is too much; None: within tolerance."""


def compare(output: Tensor, reference: Tensor, dtype: torch.dtype) -> Difference:
    """Holds `output` to `reference` with the tolerance of `dtype`. NaN is never right; an infinity must
    be the same one in both. Raises KeyError for a floating type without a stated tolerance."""
    if output.shape != reference.shape:
        return _wrong(f"shape {list(output.shape)}, not {list(reference.shape)}")
    if not output.dtype.is_floating_point:
        return _compare_exactly(output, reference)
    out, ref = output.double().cpu(), reference.double().cpu()
    for name, values in (("the reference", ref), ("the output", out)):
        if (is_nan := values.isnan()).any():
            return _wrong(f"{name} is NaN", is_nan)
    is_same_infinity = out.isinf() & (out == ref)
    if (is_other := (out.isinf() | ref.isinf()) & ~is_same_infinity).any():
        return _wrong("an infinity in one of the two only", is_other)
    return _compare_finite(out[~is_same_infinity], ref[~is_same_infinity], RELATIVE[dtype], ~is_same_infinity)


def _compare_finite(out: Tensor, ref: Tensor, limit: float, places: Tensor) -> Difference:
    """Of the elements at `places`, where both are finite."""
    error = (out - ref).abs()
    if not error.any():
        return Difference(0.0, 0.0, None, None)
    relative = _ratio(error.norm().item(), ref.norm().item())
    scale = ref.abs().max().item()
    max_abs = _ratio(error.max().item(), scale)
    is_spike = error > SPIKE * limit * scale
    at = int(is_spike.to(torch.uint8).argmax() if is_spike.any() else error.argmax())
    index = tuple(places.nonzero()[at].tolist())
    if relative > limit:
        return Difference(relative, max_abs, index, f"‖error‖ / ‖reference‖ {relative:.2e} above {limit:.1e}")
    if is_spike.any():
        reason = f"an error of {max_abs:.2e} of the largest value, above {SPIKE * limit:.1e}"
        return Difference(relative, max_abs, index, reason)
    return Difference(relative, max_abs, index, None)


def _compare_exactly(output: Tensor, reference: Tensor) -> Difference:
    out, ref = output.cpu(), reference.to(output.dtype).cpu()
    if torch.equal(out, ref):
        return Difference(0.0, 0.0, None, None)
    is_other = out != ref
    return _wrong(f"{int(is_other.sum())} of {is_other.numel()} whole numbers differ", is_other)


def _wrong(reason: str, places: Tensor | None = None) -> Difference:
    index = None if places is None else tuple(places.nonzero()[0].tolist())
    return Difference(float("inf"), float("inf"), index, reason)


def _ratio(part: float, whole: float) -> float:
    """0 / 0 is 0: nothing was to be there and nothing is."""
    if part == 0.0:
        return 0.0
    return part / whole if whole > 0.0 else float("inf")
