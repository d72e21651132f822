"""Problems: their loops are counted as the kernels run them, and they begin with what is used today."""

from __future__ import annotations

import inspect

import pytest

from kernels.audit.calls import CALLS
from kernels.audit.configurations import KERNELS, MODELS
from kernels.commands.tune_command import OPS
from kernels.roofline import WORK
from kernels.tune.problem import Problem
from kernels.tune.problems import _MAKERS, problems

ALL = [problem for op in OPS for arch in ("sm_80", "sm_90") for problem in problems(op, arch)]


def the_problem(op: str, name: str) -> Problem:
    return next(problem for problem in problems(op, "sm_90") if problem.name == name)


def test_every_op_has_problems_of_every_model() -> None:
    assert set(_MAKERS) == set(OPS)
    assert {problem.name.partition(",")[0] for problem in ALL} == set(MODELS)


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.name)
def test_it_begins_in_its_space_and_speaks_to_calls_and_formulas(problem: Problem) -> None:
    for value, values in zip(problem.start, problem.space.genes.values(), strict=True):
        assert value in values
    arguments = problem.arguments_with(problem.start)
    inspect.signature(CALLS[problem.op]).bind(None, "sm_90", **arguments)
    assert WORK[problem.op](**arguments).num_bytes > 0
    assert set(problem.turns(problem.space.named(problem.start))) <= set(KERNELS)


def test_turns_of_decode() -> None:
    """32 sequences of 4096 keys, 8 key heads, 4 heads each in 16 rows; tiles of 64 keys of 128 bfloat16."""
    problem = the_problem("attention_decode", "llama, 32 of 4096 keys")
    turns = problem.turns({"num_rows": 64, "num_keys": 64})["_attend"]
    assert turns.number == 32 * 8 * 64
    assert turns.flops == 2 * 2 * 16 * 64 * 128
    assert turns.num_bytes == 2 * 64 * 128 * 2


def test_turns_of_prefill() -> None:
    """Tiles of 32 queries x 4 heads behind 6144 keys: 6176, 6208, … 8192 keys each."""
    problem = the_problem("attention_prefill", "llama, 2048 queries behind 6144 keys")
    turns = problem.turns({"num_rows": 128, "num_keys": 32})["_prefill"]
    assert turns.number == 8 * sum(range(6176, 8193, 32)) // 32
    assert turns.flops == 2 * 2 * 128 * 32 * 128


def test_turns_of_both_passes_backward() -> None:
    """4096 tokens: each tile of 64 queries sees the tiles of 32 keys up to it, and the other way round."""
    problem = the_problem("attention_flash", "llama, backward, 4096 tokens")
    turns = problem.turns({"num_rows": 64, "num_keys": 32})
    keys, queries = turns["_key_gradients_kernel"], turns["_query_gradients_kernel"]
    assert queries.number == 32 * sum(2 * (i + 1) for i in range(64))
    assert queries.flops == 3 * 2 * 64 * 32 * 128
    assert keys.flops == 4 * 2 * 64 * 32 * 128
    # Half of the tiles on the diagonal are counted: by whole tiles it would be 128 · 64 / 2 + 64.
    assert keys.number == 32 * sum(32 * (i + 1) for i in range(128)) // 64
    assert queries.num_bytes == 2 * 32 * 128 * 2
    assert keys.num_bytes == 2 * 64 * 128 * 2


def test_turns_of_products_with_quantised_weights() -> None:
    """4096 rows of 14336 numbers of 4 bits, 7168 bytes: 64 bytes a turn, for they are in groups of 64."""
    problem = the_problem("matmul_quant", "llama, down W4 group 64, 64 rows")
    chosen = {"num_rows": 32, "num_outputs": 128, "num_bytes": 256, "num_warps": 4, "num_stages": 3}
    turns = problem.turns(chosen)["_multiply"]
    assert turns.number == 2 * 32 * 112
    assert turns.flops == 2 * 32 * 128 * 2 * 64
    assert turns.num_bytes == 128 * 64 + 32 * 2 * 64 * 2
    (whole,) = the_problem("matmul_quant", "llama, down W8, 64 rows").turns(chosen).values()
    assert whole.number == 2 * 32 * 56


def test_turns_of_products_of_8_bits() -> None:
    problem = the_problem("matmul_w8a8", "smollm, up, 2048 rows")
    chosen = {"num_rows": 128, "num_outputs": 64, "num_bytes": 128, "num_warps": 4, "num_stages": 3}
    turns = problem.turns(chosen)["_multiply_codes"]
    assert turns.number == 16 * 24 * 5  # 576 columns: the last turn is half empty
    assert turns.flops == 2 * 128 * 64 * 128
    assert turns.num_bytes == (128 + 64) * 128


def test_the_two_ways_of_flash_are_never_each_other_s_nearest() -> None:
    ways = {problem.shape["way"] for problem in problems("attention_flash", "sm_90")}
    assert ways == {"forward", "backward"}
