"""Stored outputs come back as they were, and the present code is held to them, first difference named."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.parity import archive, catalogue
from kernels.parity.archive import Archive, ArchiveError, GreedyAnswer, Record, Versions, read, write
from kernels.parity.case import OpCase
from kernels.parity.report import as_json, changed, lines
from kernels.parity.runner import Row, make_inputs
from kernels.parity.session import Session
from kernels.parity.store import NEAR_TIE, ModelFailed, greedy_rows, held_to, record
from tests.kernels.parity_case import double_case

CPU = torch.device("cpu")
VERSIONS = Versions("0.1.0", "2.13.0", "3.7.1", "cpu, interpreted")
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def there_and_back(path: Path, *records: Record, greedy: Sequence[GreedyAnswer] = ()) -> Archive:
    write(path, Archive(VERSIONS, records, greedy))
    return read(path, CPU)


def of_inputs(**inputs: Any) -> Record:
    return Record("op", "case", inputs, ())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)], ids=str)
def test_a_tensor_of_any_type_comes_back_bit_by_bit(
    dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path
) -> None:
    tensor = (100 * torch.rand(shape)).to(dtype)
    back = there_and_back(tmp_path / "f", of_inputs(x=tensor)).records[0].inputs["x"]
    assert back.dtype == dtype
    assert torch.equal(back.float(), tensor.float())


def test_a_view_comes_back_with_its_values(tmp_path: Path) -> None:
    view = torch.arange(12.0).reshape(3, 4).T[1:]
    assert torch.equal(there_and_back(tmp_path / "f", of_inputs(x=view)).records[0].inputs["x"], view)


@pytest.mark.parametrize(
    "value", [None, True, 3, 0.1, "causal", [1, 2], {"a": None}, (1, 2.5, None), (1, (2, "x"))], ids=repr
)
def test_a_plain_value_comes_back_equal_and_of_its_type(value: Any, tmp_path: Path) -> None:
    back = there_and_back(tmp_path / "f", of_inputs(x=value)).records[0].inputs["x"]
    assert (type(back), back) == (type(value), value)


def test_a_tuple_may_hold_tensors(tmp_path: Path) -> None:
    back = there_and_back(tmp_path / "f", of_inputs(x=(torch.ones(2), None))).records[0].inputs["x"]
    assert torch.equal(back[0], torch.ones(2))
    assert back[1] is None


def test_versions_and_greedy_tokens_come_back(tmp_path: Path) -> None:
    answer = GreedyAnswer([1, 2], [3], [0.5])
    back = there_and_back(tmp_path / "f", greedy=[answer])
    assert (back.versions, back.records, back.greedy) == (VERSIONS, [], [answer])


def test_what_cannot_be_stored_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="op case: by: a object cannot be stored"):
        write(tmp_path / "f", Archive(VERSIONS, [of_inputs(by=object())], ()))
    with pytest.raises(ArchiveError, match="cannot be written"):
        write(tmp_path / "none" / "f", Archive(VERSIONS, [], ()))


def numpy_file(path: Path, **arrays: Any) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


@pytest.mark.parametrize(
    "kind", ["text", "empty", "zip", "no manifest", "not JSON", "other JSON", "pickle", "cut"]
)
def test_another_file_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    if kind in ("text", "empty"):
        path.write_text("" if kind == "empty" else "some text")
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a", "b")
    elif kind == "cut":
        write(path, Archive(VERSIONS, [of_inputs(x=torch.ones(100))], ()))
        path.write_bytes(path.read_bytes()[:-30])
    else:
        manifest: Mapping[str, Any] = {
            "no manifest": {"t0": np.zeros(3)},
            "not JSON": {"manifest": np.zeros(3, np.uint8)},
            "other JSON": {"manifest": np.frombuffer(b'{"format": 2}', np.uint8)},
            "pickle": {"manifest": np.array([object()], dtype=object)},
        }[kind]
        numpy_file(path, **manifest)
    with pytest.raises(ArchiveError, match="is no file of stored cases"):
        read(path, CPU)


def of_tensor(array: str = "t0", dtype: str = "float32", shape: Sequence[int] = (3,)) -> dict[str, Any]:
    return {"type": "tensor", "array": array, "dtype": dtype, "shape": list(shape)}


def manifest(stored: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    versions = {"headrace": "1", "torch": "2", "triton": "3", "device": "cpu"}
    case = {"op": "rope", "name": "x", "inputs": {"x": stored}, "outputs": []}
    told = {"format": 1, "versions": versions, "cases": [case], "greedy": []}
    return np.frombuffer(json.dumps(told).encode(), np.uint8)


@pytest.mark.parametrize(
    ("stored", "array"),
    [
        (of_tensor(), np.zeros(3)),
        (of_tensor(), np.zeros(12, np.complex128)),
        (of_tensor(), np.array(["abc"])),
        (of_tensor(), np.array([object()], dtype=object)),
        (of_tensor(dtype="float31"), np.zeros(12, np.uint8)),
        (of_tensor(array="t1"), np.zeros(12, np.uint8)),
        (of_tensor(shape=[1 << 33]), np.zeros(1, np.uint8)),
        (of_tensor(shape=[1 << 63]), np.zeros(1, np.uint8)),
        (of_tensor(shape=[4]), np.zeros(12, np.uint8)),
    ],
)
def test_a_tensor_that_is_not_its_bytes_is_refused(stored: Any, array: Any, tmp_path: Path) -> None:
    numpy_file(tmp_path / "f", manifest=manifest(stored), t0=array)
    with pytest.raises(ArchiveError, match="is no file of stored cases"):
        read(tmp_path / "f", CPU)


def test_bytes_are_not_taken_a_thousandfold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_file(tmp_path / "f", manifest=manifest(of_tensor()), t0=np.zeros(12, np.uint8))
    assert len(read(tmp_path / "f", CPU).records) == 1
    monkeypatch.setattr(archive, "_MAX_BYTES", 100)
    with pytest.raises(ArchiveError, match="is no file of stored cases"):
        read(tmp_path / "f", CPU)


def test_a_plain_array_and_a_foreign_member_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ArchiveError, match="is no file of stored cases"):
        read(path, CPU)
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("manifest", b"{}")
    with pytest.raises(ArchiveError, match="is no file of stored cases"):
        read(path, CPU)


def test_a_file_damaged_anywhere_is_refused_or_read_never_worse(tmp_path: Path) -> None:
    """Deflated bytes, headers and checksums each have errors of their own."""
    path, random = tmp_path / "f", Random(3)
    write(path, Archive(VERSIONS, [of_inputs(x=torch.randn(1000))], ()))
    whole, refused = path.read_bytes(), 0
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        path.write_bytes(damaged)
        try:
            read(path, CPU)
        except ArchiveError:
            refused += 1
    assert refused > 50


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="cannot be read"):
        read(tmp_path / "f", CPU)


def rows_of(stored: Record, now: OpCase, *, is_exact: bool = False) -> list[Row]:
    return held_to(stored, {now.key: now}, is_exact=is_exact)


def plus(shift: float, at: int) -> OpCase:
    """Twice x, but for one element of the first row."""

    def run(module: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        doubled = inputs["x"] * 2
        doubled[0, at] += shift
        return (doubled,)

    return double_case(run=run)


def test_the_same_code_gives_the_same() -> None:
    (row,) = rows_of(record(double_case(), CPU), double_case(), is_exact=True)
    assert row == Row("double", "float32", "stored", 0, 0.0, 0.0, None, None)


def test_stored_inputs_are_run_not_new_ones() -> None:
    stored = record(double_case(), CPU)
    other = double_case(make=lambda generator, device: {"x": torch.zeros(2, 3), "by": 2.0})
    assert rows_of(stored, other, is_exact=True)[0].failure is None


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_difference_is_named_by_op_case_output_and_index(is_exact: bool) -> None:
    (row,) = rows_of(record(double_case(), CPU), plus(1.0, at=2), is_exact=is_exact)
    assert row.told.startswith("double float32: output 0 against stored at [0, 2]: ")


def test_a_difference_within_tolerance_is_one_only_if_asked() -> None:
    stored = record(double_case(), CPU)
    (row,) = rows_of(stored, plus(1e-6, at=1))
    assert (row.failure, row.index) == (None, (0, 1))
    assert changed([row]) == [row]
    (exact,) = rows_of(stored, plus(1e-6, at=1), is_exact=True)
    assert (exact.failure, exact.index) == ("not equal", (0, 1))


def test_a_case_that_is_gone_fails() -> None:
    assert rows_of(record(double_case(), CPU), double_case(name="other"))[0].failure == "no such case now"


def test_an_op_that_raises_or_says_less_fails() -> None:
    stored = record(double_case(), CPU)
    (raised,) = rows_of(stored, double_case(run=lambda module, inputs: 1 / 0))
    assert raised.failure == "ZeroDivisionError: division by zero"
    (less,) = rows_of(stored, double_case(run=lambda module, inputs: ()))
    assert less.failure == "0 outputs, not 1"


BEFORE = GreedyAnswer([1], [5, 6, 7], [1.0, NEAR_TIE / 2, 1.0])


def greedy(*token_ids: int) -> Row:
    (row,) = greedy_rows([BEFORE], [GreedyAnswer([1], list(token_ids), [1.0] * len(token_ids))])
    return row


def test_greedy_tokens_are_compared_one_by_one() -> None:
    assert greedy(5, 6, 7).index is None
    assert greedy(5, 6, 8).told == (
        "greedy prompt 0: output 0 against stored at [2]: token 8, not 7 (before by 1)"
    )
    assert greedy(4, 6, 7).failure is not None


def test_a_near_tie_may_go_either_way_and_then_the_rest_says_nothing() -> None:
    row = greedy(5, 9, 9)
    assert (row.index, row.failure) == ((1,), None)


def test_too_few_or_too_many_greedy_tokens_fail() -> None:
    assert greedy(5, 6).failure == "2 tokens, not 3"
    assert greedy(5, 6, 7, 8).failure == "4 tokens, not 3"


def test_a_session_keeps_the_greedy_tokens_and_asks_for_the_same_prompts(tmp_path: Path) -> None:
    asked: list[Any] = []

    def model(prompts: Any) -> list[tuple[list[int], list[int], list[float]]]:
        asked.append(prompts)
        return [([1, 2], [3], [1.0])]

    session = Session([], is_whole=False, device=CPU, greedy=model, tell=lambda line: None)
    session.save(tmp_path / "f")
    (row,) = session.hold_to(tmp_path / "f", is_exact=False)
    assert row.failure is None
    assert asked == [None, [[1, 2]]]


def test_a_model_that_cannot_run_is_told_of(tmp_path: Path) -> None:
    def model(prompts: Any) -> Any:
        raise ValueError("no such model")

    session = Session([], is_whole=False, device=CPU, greedy=model, tell=lambda line: None)
    with pytest.raises(ModelFailed, match="no such model"):
        session.save(tmp_path / "f")


def test_stored_cases_of_an_op_that_is_gone_fail_unless_others_are_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "f", Archive(VERSIONS, [record(double_case(op="gone"), CPU)], ()))

    def session(*ops: str) -> Session:
        return Session(ops, is_whole=False, device=CPU, greedy=None, tell=lambda line: None)

    (row,) = session(*catalogue.OPS).hold_to(tmp_path / "f", is_exact=False)
    assert (row.op, row.failure) == ("gone", "no such case now")
    with pytest.raises(ArchiveError, match="holds nothing of rope"):
        session("rope").hold_to(tmp_path / "f", is_exact=False)


@pytest.mark.parametrize("op", catalogue.OPS)
def test_every_op_s_inputs_can_be_stored(op: str, tmp_path: Path) -> None:
    records = [
        Record(case.op, case.name, make_inputs(case, CPU), ()) for case in catalogue.cases_of(op, whole=False)
    ]
    back = there_and_back(tmp_path / "f", *records)
    assert [one.inputs.keys() for one in back.records] == [one.inputs.keys() for one in records]


def test_what_a_row_looks_like_in_json_and_in_the_table() -> None:
    rows = [
        Row("rope", "a", "reference", 0, 1e-3, 2e-3, (1, 2), None),
        Row("rope", "b", "reference", 0, float("inf"), float("inf"), None, "NaN", near_ties=3),
        Row("rope", "b", "sdpa", 0, 0.0, 0.0, None, None),
    ]
    assert as_json(rows[1])["relative"] is None
    assert as_json(rows[0]) == {
        "op": "rope", "case": "a", "against": "reference", "output": 0,
        "relative": 1e-3, "max_abs": 2e-3, "index": (1, 2), "failure": None, "near_ties": 0,
    }  # fmt: skip
    assert lines(rows) == [
        ("rope", "reference", "2", "2", "inf", "3", "1"),
        ("rope", "sdpa", "1", "1", "0.0e+00", "", "0"),
    ]
