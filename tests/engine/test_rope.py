"""RoPE tables: the angle of each position and pair, rounded once."""

import math

import pytest
import torch

from engine.config import RopeConfig
from engine.rope import rope_tables


def test_angle_is_position_times_theta_to_minus_two_i_over_dim() -> None:
    cos, sin = rope_tables(RopeConfig(theta=100.0), 4, 1000, dtype=torch.float64, device=torch.device("cpu"))
    assert cos.shape == sin.shape == (1000, 2)
    assert cos[7].tolist() == pytest.approx([math.cos(7), math.cos(7 / 10)], abs=1e-15)
    assert sin[999].tolist() == pytest.approx([math.sin(999), math.sin(99.9)], abs=1e-13)


def test_float32_is_the_rounded_float64() -> None:
    device, rope = torch.device("cpu"), RopeConfig(theta=100000.0)
    wide, _ = rope_tables(rope, 64, 8192, dtype=torch.float64, device=device)
    narrow, _ = rope_tables(rope, 64, 8192, dtype=torch.float32, device=device)
    assert torch.equal(narrow, wide.float())


def test_scaling_is_refused() -> None:
    rope = RopeConfig(theta=1e4, scaling="yarn", factor=4.0)
    with pytest.raises(ValueError, match="yarn"):
        rope_tables(rope, 8, 16, dtype=torch.float32, device=torch.device("cpu"))
