"""SmolLM2 quantised: int8 and the file's own numbers are within their bounds, int4 is not and says so."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from engine.evaluation.command import evaluation

pytestmark = pytest.mark.soak


def test_int8_and_stored_hold_and_int4_is_told_to_cost_too_much() -> None:
    given = ("quant", "smollm2", "--seeds", "2", "--json")
    precisions = [part for name in ("int8", "stored", "int4") for part in ("--quantization", name)]
    result = CliRunner().invoke(evaluation, [*given, *precisions])
    assert result.exit_code == 1
    answer = json.loads(result.stdout.splitlines()[-1])
    int8, stored, int4 = answer["rows"]
    assert [failure.split(":")[0] for failure in answer["failures"]] == ["int4", "int4"]
    assert int8["perplexity_ratio"] < 1.01
    assert stored["perplexity_ratio"] == 1.0
    assert int4["perplexity_ratio"] < 1.25
