"""The runner: what an op leaves out, changes or refuses is a row that failed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.parity.case import OpCase
from kernels.parity.poison import PoisonedMemory
from kernels.parity.runner import Row, check, make_inputs
from tests.kernels.parity_case import double_case, module_with

CPU = torch.device("cpu")


def the_row(double: Callable[[Tensor, float], Tensor], case: OpCase | None = None) -> Row:
    (row,) = check(case or double_case(), CPU, module_with(double))
    return row


def failure(double: Callable[[Tensor, float], Tensor]) -> str:
    row = the_row(double)
    assert row.failure is not None
    return row.failure


def test_the_op_s_own_module_is_run_and_held_to_the_reference() -> None:
    (row,) = check(double_case(), CPU)
    assert row == Row("double", "float32", "reference", 0, 0.0, 0.0, None, None)


def test_near_ties_of_the_outputs_are_counted_once() -> None:
    case = double_case(
        run=lambda module, inputs: (inputs["x"] * 2.0, torch.tensor([0, 1, 1])),
        reference=lambda inputs: (inputs["x"].double() * 2.0, torch.tensor([0, 1, 1])),
        num_near_ties=lambda outputs: int(outputs[1].sum()),
    )
    assert [(row.output, row.near_ties, row.failure) for row in check(case, CPU)] == [
        (0, 2, None),
        (1, 0, None),
    ]


def test_a_wrong_op_fails_and_says_where() -> None:
    row = the_row(lambda x, by: torch.where(torch.arange(3) == 2, x, x * by))
    assert row.told.startswith("double float32: output 0 against reference at [")
    assert "‖error‖" in row.told


def test_what_was_never_written_is_found() -> None:
    def all_but_the_last(x: Tensor, by: float) -> Tensor:
        out = torch.empty_like(x)
        out[:, :-1] = x[:, :-1] * by
        return out

    row = the_row(all_but_the_last)
    assert (row.index, row.failure) == ((0, 2), "the output is NaN")


def test_an_op_that_changes_its_input_fails() -> None:
    assert failure(lambda x, by: x.mul_(by)) == "ValueError: input x was changed"


def test_an_op_that_raises_is_a_row_of_its_own() -> None:
    def refuse(x: Tensor, by: float) -> Tensor:
        raise RuntimeError("no such tile")

    assert failure(refuse) == "RuntimeError: no such tile"


def test_too_few_outputs_fail() -> None:
    case = double_case(reference=lambda inputs: (inputs["x"] * 2, inputs["x"]))
    assert the_row(lambda x, by: x * by, case).failure == "1 outputs, not 2"


def test_another_implementation_has_a_row_beside_the_reference_s() -> None:
    case = double_case(other=lambda inputs: (inputs["x"] + inputs["x"] + 1,), other_name="sum")
    rows = check(case, CPU)
    assert [(row.against, row.failure is None) for row in rows] == [("reference", True), ("sum", False)]


def test_inputs_are_the_same_each_time_and_differ_from_another_case_s() -> None:
    one, again = make_inputs(double_case(), CPU), make_inputs(double_case(), CPU)
    assert torch.equal(one["x"], again["x"])
    assert not torch.equal(one["x"], make_inputs(double_case(name="other"), CPU)["x"])


@pytest.mark.parametrize(
    ("dtype", "unwritten"), [(torch.float16, "nan"), (torch.int32, "2147483647"), (torch.bool, "True")]
)
def test_memory_is_poisoned_inside_only(dtype: torch.dtype, unwritten: str) -> None:
    x = torch.zeros(2, dtype=dtype)
    with PoisonedMemory():
        made = (torch.empty(2, dtype=dtype), torch.empty_like(x), x.new_empty(2), torch.zeros(2, dtype=dtype))
    assert [str(tensor[0].item()) for tensor in made[:3]] == [unwritten] * 3
    assert torch.equal(made[3], x)
