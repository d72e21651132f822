"""`headrace kernels roofline` as people run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import headrace
from kernels.audit.configurations import OPS, configurations
from kernels.gpus import GPUS

REPOSITORY = Path(__file__).parents[2]


def roofline(*arguments: str) -> Result:
    return CliRunner().invoke(headrace.main, ["kernels", "roofline", *arguments])


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout.splitlines()[-1])
    assert answer["failures"] == []
    found: list[dict[str, Any]] = answer["rows"]
    return found


@pytest.mark.parametrize("gpu", list(GPUS))
def test_every_configuration_has_its_limit_on_every_gpu(gpu: str) -> None:
    *found, compared = rows(roofline("--gpu", gpu, "--json"))
    assert [(row["op"], row["configuration"]) for row in found] == [(c.op, c.name) for c in configurations()]
    for row in found:
        assert row["limit_us"] == pytest.approx(max(row["seconds_by_bound"].values()) * 1e6)
        assert row["bytes"] == sum(row["bytes_by_part"].values())
    assert compared["matrix_bytes"] == 64 * 2**34 * 2
    assert compared["flash_bytes"] < compared["standard_bytes"] / 1000


def test_decode_of_llama_on_an_h100_by_hand() -> None:
    """One sequence of 32 K keys: 8 heads of 2 x 128 float16 a key is 128 MiB, and next to nothing else."""
    (row, *_) = rows(roofline("--op", "attention_decode", "--json"))
    assert row["configuration"] == "llama float16 one long"
    assert row["bytes_by_part"]["keys and values"] == 128 << 20
    assert row["bound_by"] == "memory"
    assert row["limit_us"] == pytest.approx(134.2e6 / 3.35e12 * 1e6, rel=1e-3)


def test_one_op_tells_of_itself_alone() -> None:
    result = roofline("--op", "rope", "--json")
    assert {row["op"] for row in rows(result)} == {"rope"}
    assert "128 K tokens" not in result.stdout
    assert "a matrix of 2.2 TB" in roofline("--op", "attention_flash").stdout


def test_an_op_that_is_not_there_exits_2() -> None:
    result = roofline("--op", "attention")
    assert result.exit_code == 2
    assert OPS[0] in result.stderr


def test_help_and_roofline_need_neither_torch_nor_triton() -> None:
    program = (
        "import sys; from click.testing import CliRunner; import headrace\n"
        "for arguments in (['kernels', '--help'], ['kernels', 'roofline', '--json']):\n"
        "    assert CliRunner().invoke(headrace.main, arguments).exit_code == 0\n"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules), sorted(sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
