"""What parity does not say of the norms, RoPE and the gate: buffers, scaled tables, no tokens, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.config import RopeConfig
from engine.rope import rope_tables
from kernels import reference
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope import rope
from kernels.silu_mul import silu_mul

CPU = torch.device("cpu")


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_results_come_in_the_buffers_that_were_given() -> None:
    x, residual, weight = random(3, 20), random(3, 20) + 1, random(20)
    normed, total, gated = torch.empty(3, 20), torch.empty(3, 20), torch.empty(3, 10)
    assert rms_norm(x, weight, 1e-5, out=normed) is normed
    assert torch.allclose(normed, reference.rms_norm(x, weight, 1e-5))
    assert add_rms_norm(x, residual, weight, 1e-5, out=normed, residual_out=total) == (normed, total)
    assert torch.equal(total, x + residual)
    assert silu_mul(x, out=gated) is gated
    assert torch.allclose(gated, reference.silu_mul(x))


def test_the_sum_may_take_the_residual_s_place_and_the_norm_x_s() -> None:
    x, residual, weight = random(3, 20), random(3, 20) + 1, random(20)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert add_rms_norm(x, residual, weight, 1e-5, out=x, residual_out=residual) == (x, residual)
    assert torch.equal(x, normed)
    assert torch.equal(residual, total)


def test_the_norm_is_of_the_sum_as_stored() -> None:
    x, residual, weight = (tensor.half() for tensor in (random(4, 256), random(4, 256) * 3, random(256)))
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(normed, rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("scaling", ["none", "linear", "llama3", "yarn"])
def test_every_scaling_of_positions_is_in_the_tables(scaling: str) -> None:
    divisors = () if scaling == "none" else tuple(1.0 + i for i in range(8))
    config = RopeConfig(
        1000.0, scaling, divisors=divisors, attention_factor=1.25 if scaling == "yarn" else 1.0
    )
    cos, sin = rope_tables(config, 16, 64, dtype=torch.float32, device=CPU)
    x, positions = random(5, 3, 16), torch.tensor([0, 63, 7, 7, 31])
    expected = reference.rope(x, cos[positions], sin[positions])
    assert torch.allclose(rope(x, cos, sin, positions), expected, atol=1e-6)


def test_tables_of_another_head_are_refused() -> None:
    with pytest.raises(ValueError, match="tables of 4 and 4 pairs for a head of 16"):
        rope(random(1, 1, 16), torch.ones(8, 4), torch.ones(8, 4), torch.zeros(1, dtype=torch.int64))


def test_a_step_without_tokens_is_no_trouble() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert rms_norm(torch.ones(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
    assert rope(torch.ones(0, 2, 8), torch.ones(4, 4), torch.ones(4, 4), none).shape == (0, 2, 8)
    assert silu_mul(torch.ones(0, 8)).shape == (0, 4)
