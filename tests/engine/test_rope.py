"""RoPE: the angles are transformers' for every scaling, and what is not understood is refused by name."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.config import RopeConfig
from engine.loading.errors import ModelError
from engine.loading.rope_recipe import agreed_parameters, read_rope
from engine.rope import rope_tables

CPU = torch.device("cpu")
GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "families" / "rope.json").read_text())
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}


def read(parameters: dict[str, Any], *, head_dim: int = 16, default: float | None = None) -> RopeConfig:
    agreed = agreed_parameters({"": parameters})
    return read_rope(agreed, head_dim=head_dim, max_position_embeddings=256, default_theta=default)[0]


def trained(parameters: dict[str, Any]) -> int:
    return read_rope(parameters, head_dim=16, max_position_embeddings=256, default_theta=None)[1]


def refusal(parameters: dict[str, Any], *, head_dim: int = 16) -> str:
    with pytest.raises(ModelError) as caught:
        read(parameters, head_dim=head_dim)
    return str(caught.value)


def test_angle_is_position_times_theta_to_minus_two_i_over_dim() -> None:
    cos, sin = rope_tables(RopeConfig(theta=100.0), 4, 1000, dtype=torch.float64, device=CPU)
    assert cos.shape == sin.shape == (1000, 2)
    assert cos[7].tolist() == pytest.approx([math.cos(7), math.cos(7 / 10)], abs=1e-15)
    assert sin[999].tolist() == pytest.approx([math.sin(999), math.sin(99.9)], abs=1e-13)


def test_float32_is_the_rounded_float64() -> None:
    rope = RopeConfig(theta=100000.0)
    wide, _ = rope_tables(rope, 64, 8192, dtype=torch.float64, device=CPU)
    narrow, _ = rope_tables(rope, 64, 8192, dtype=torch.float32, device=CPU)
    assert torch.equal(narrow, wide.float())


@pytest.mark.parametrize("row", GOLDEN.values(), ids=GOLDEN)
def test_every_scaling_turns_by_transformers_angles(row: dict[str, Any]) -> None:
    rope = read(row["parameters"], head_dim=row["head_dim"])
    positions = row["positions"]
    tables = rope_tables(rope, row["head_dim"], max(positions) + 1, dtype=torch.float64, device=CPU)
    for table, name in zip(tables, ("cos", "sin"), strict=True):
        expected = torch.tensor(row[name], dtype=torch.float64)
        torch.testing.assert_close(table[positions], expected, rtol=0, atol=1e-8)


def test_the_golden_angles_tell_the_scalings_apart() -> None:
    """What is compared above would not be equal by chance."""
    seen = {json.dumps([row["cos"], row["head_dim"]]) for row in GOLDEN.values()}
    assert len(seen) == len(GOLDEN)
    assert {row["parameters"]["rope_type"] for row in GOLDEN.values()} == {
        "default",
        "linear",
        "llama3",
        "yarn",
    }


def test_a_scaling_without_its_divisors_makes_no_tables() -> None:
    with pytest.raises(ValueError, match=r"'yarn': 0 divisors, 4 pairs"):
        rope_tables(RopeConfig(theta=1e4, scaling="yarn", factor=4.0), 8, 16, dtype=torch.float32, device=CPU)


def test_the_trained_context_is_what_base_and_scaling_were_trained_for_together() -> None:
    assert trained({"rope_theta": 1e4}) == 256
    assert trained(LINEAR) == 256  # nothing is said of the original: what is stated may be either
    assert trained(LINEAR | {"original_max_position_embeddings": 512}) == 2048
    assert trained(LLAMA3) == 256
    assert trained(YARN) == 256
    assert trained(YARN | {"factor": 2.5}) == 160
    assert trained(YARN | {"factor": 999999.0, "original_max_position_embeddings": 2**30}) == 2**31 - 1


def test_the_base_is_the_stated_one_or_the_architectures_own() -> None:
    assert read({"rope_theta": 5e5}, default=1e4).theta == 5e5
    assert read({}, default=1e4).theta == 1e4
    assert "RoPE base (rope_theta) is not stated" in refusal({})


def test_older_files_say_type() -> None:
    assert read({"type": "linear", "factor": 2, "rope_theta": 1e4}) == RopeConfig(
        1e4, "linear", 2.0, (2.0,) * 8
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"rope_type": "dynamic", "factor": 2.0},
            "RoPE scaling 'dynamic' (rope_theta 10000.0, factor 2.0) is not",
        ),
        (
            {"type": "longrope", "short_factor": [1.0]},
            "RoPE scaling 'longrope' (rope_theta 10000.0, short_factor [1.0])",
        ),
        ({"rope_type": "yarn", "type": "linear"}, "RoPE rope_type 'yarn' and type 'linear' contradict"),
        ({"rope_type": "default", "factor": 2.0}, "factor 2.0 is stated without a scaling that uses it"),
        ({"rope_type": "x" * 1000}, "RoPE scaling 'xxx"),
        ({"type": "mrope", "mrope_section": [16, 24]}, "RoPE scaling 'mrope'"),
        ({"rope_type": ["yarn"]}, "RoPE scaling ['yarn']"),
        ({"rope_type": "default", "mrope_section": [16, 24]}, "unknown field `mrope_section`"),
        ({"full_attention": {"rope_theta": 1e4}}, "unknown field `full_attention`"),
        (LINEAR | {"factor": 0.0}, "$.factor"),
        (LINEAR | {"factor": 0.5}, "$.factor"),
        (LINEAR | {"factor": "4"}, "$.factor"),
        (LINEAR | {"factor": math.nan}, "$.factor"),
        (LINEAR | {"factor": math.inf}, "$.factor"),
        (LINEAR | {"factor": None}, "'linear' does not state its factor"),
        ({"rope_theta": 0.0}, "$.rope_theta"),
        ({"rope_theta": -1e4}, "$.rope_theta"),
        ({"rope_theta": 1.0}, "$.rope_theta"),
        ({"rope_theta": math.nan}, "$.rope_theta"),
        ({"rope_theta": math.inf}, "$.rope_theta"),
        ({"rope_theta": True}, "$.rope_theta"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.5}, "$.partial_rotary_factor"),
        (YARN | {"original_max_position_embeddings": None}, "does not state its original_max_position"),
        (YARN | {"original_max_position_embeddings": 0}, "$.original_max_position_embeddings"),
        (YARN | {"beta_fast": 1.0, "beta_slow": 32.0}, "beta_fast 1.0 is below beta_slow 32.0"),
        (YARN | {"attention_factor": 0.0}, "$.attention_factor"),
        (YARN | {"truncate": "no"}, "$.truncate"),
        (YARN | {"beta_slow": 5e-324}, "$.beta_slow"),
        (YARN | {"beta_fast": 1e10}, "$.beta_fast"),
        (YARN | {"attention_factor": 5e-324}, "$.attention_factor"),
        (LLAMA3 | {"low_freq_factor": 5e-324}, "$.low_freq_factor"),
        (LLAMA3 | {"high_freq_factor": math.inf}, "$.high_freq_factor"),
        (LLAMA3 | {"low_freq_factor": None}, "does not state its low_freq_factor"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "high_freq_factor 1.0 is not above low_freq_factor 1.0"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(parameters: dict[str, Any], message: str) -> None:
    assert message in refusal({"rope_theta": 1e4} | parameters)


@pytest.mark.parametrize("head_dim", [0, 1, 7, 1026, 2**30])
def test_a_head_that_cannot_be_paired_is_refused(head_dim: int) -> None:
    assert f"a head has {head_dim} dimensions" in refusal({"rope_theta": 1e4}, head_dim=head_dim)


@given(
    theta=st.floats(1.001, 1e14),
    factor=st.floats(1.0, 999999.0),
    original=st.integers(1, 2**31 - 1),
    turns=st.tuples(st.floats(0.001, 1e6), st.floats(0.001, 1e6)).map(sorted),
    head_dim=st.integers(1, 512).map(lambda half: 2 * half),
    kind=st.sampled_from(["linear", "llama3", "yarn"]),
)
def test_whatever_is_taken_stretches_each_pair_between_not_at_all_and_wholly(
    theta: float, factor: float, original: int, turns: list[float], head_dim: int, kind: str
) -> None:
    stated: dict[str, Any] = {"rope_type": kind, "rope_theta": theta, "factor": factor}
    stated["original_max_position_embeddings"] = original
    if kind == "yarn":
        stated |= {"beta_slow": turns[0], "beta_fast": turns[1]}
    if kind == "llama3":
        stated |= {"low_freq_factor": turns[0], "high_freq_factor": turns[1] + 1}
    rope = read(stated, head_dim=head_dim)
    assert len(rope.divisors) == head_dim // 2
    assert all(1 - 1e-9 <= divisor <= factor * (1 + 1e-9) for divisor in rope.divisors)
    assert all(slow >= fast * (1 - 1e-9) for fast, slow in pairwise(rope.divisors))
    assert 1 <= rope.attention_factor < 2.5


FIELDS = ["rope_theta", "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"]
FIELDS += ["attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"]
EXTREMES = [0.0, -0.0, 5e-324, -5e-324, 2.3e-308, 1e-300, 1e-6, math.nextafter(1, 0), 1.0]
EXTREMES += [math.nextafter(1, 2), 999999.0, 1e9, math.nextafter(1e15, 0), 1e300, sys.float_info.max]
EXTREMES += [math.inf, -math.inf, math.nan, 1, 2, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 10**400, -(10**400)]


@settings(max_examples=500)
@given(
    base=st.sampled_from([LINEAR, LLAMA3, YARN, YARN | {"truncate": False}, {"rope_theta": 1e4}]),
    extremes=st.dictionaries(
        st.sampled_from(FIELDS),
        st.sampled_from(EXTREMES) | st.floats(),
        max_size=4,
    ),
    head_dim=st.sampled_from([2, 16, 1024]),
)
@example(base=YARN, extremes={"beta_slow": 5e-324}, head_dim=16)
@example(base=YARN, extremes={"rope_theta": math.nextafter(1, 2), "beta_slow": 1e-6}, head_dim=1024)
@example(base=YARN, extremes={"mscale": 999999.0, "mscale_all_dim": 5e-324}, head_dim=2)
def test_numbers_at_the_ends_are_refused_by_name_or_make_finite_tables(
    base: dict[str, Any], extremes: dict[str, Any], head_dim: int
) -> None:
    rope = read_or_refusal(base | extremes, head_dim)
    if isinstance(rope, str):
        assert rope.startswith("RoPE ")
        return
    assert all(0 < divisor <= rope.factor * (1 + 1e-9) for divisor in rope.divisors)
    tables = rope_tables(rope, head_dim, 4, dtype=torch.float32, device=CPU)
    assert all(bool(table.isfinite().all()) for table in tables)


def read_or_refusal(parameters: dict[str, Any], head_dim: int) -> RopeConfig | str:
    try:
        return read(parameters, head_dim=head_dim)
    except ModelError as error:
        return error.message


def test_two_configs_have_one_identity_only_if_they_are_equal() -> None:
    base = read(YARN)
    changes: dict[str, Any] = {
        "theta": 2e4,
        "scaling": "llama3",
        "factor": 5.0,
        "divisors": (*base.divisors[:-1], math.nextafter(base.divisors[-1], 9)),
        "attention_factor": 1.0,
    }
    assert changes.keys() == {field.name for field in fields(RopeConfig)}
    others = [replace(base, **{name: value}) for name, value in changes.items()]
    plain = [RopeConfig(1e4), RopeConfig(1e4, attention_factor=2.0), RopeConfig(1e4, divisors=(1.0, 2.0))]
    assert len({config.identity for config in [base, *others, *plain]}) == len([base, *others, *plain])
    assert read(YARN).identity == base.identity
