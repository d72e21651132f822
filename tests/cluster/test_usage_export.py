"""`headrace usage export`: each request once, as JSON lines or CSV, from what is on the disk."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner, Result

from cluster.ledger_cli.export_command import export
from tenants.ledger.settlement import Outcome
from tests.builders_spool import DAY_S, NOON, a_settlement, spooled


@pytest.fixture
async def state_dir(tmp_path: Path) -> Path:
    base = tmp_path / "spool"
    reaped = a_settlement(2, outcome="reaped", completion_tokens=1, ended_at=NOON + 2)
    await spooled(base, "g1", a_settlement(1), a_settlement(2, tenant_id="b-corp"), reaped)
    await spooled(base, "g2", a_settlement(3, started_at=NOON + DAY_S), a_settlement(2, ended_at=NOON + 3))
    return tmp_path


def run(state_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(export, ["--state-dir", str(state_dir), *arguments])


def ids(result: Result) -> list[tuple[str, str]]:
    assert result.exit_code == 0, result.output
    told = [json.loads(line) for line in result.stdout.splitlines()]
    return sorted((one["request_id"], one["tenant_id"]) for one in told)


def test_each_request_is_told_once_as_its_gateway_has_it(state_dir: Path) -> None:
    result = run(state_dir)
    assert ids(result) == [("r1", "acme"), ("r2", "acme"), ("r2", "b-corp"), ("r3", "acme")]
    (corrected,) = [
        one
        for one in map(json.loads, result.stdout.splitlines())
        if (one["request_id"], one["tenant_id"]) == ("r2", "acme")
    ]
    assert (corrected["outcome"], corrected["completion_tokens"]) == ("finished", 7)


def test_days_and_tenant_choose(state_dir: Path) -> None:
    assert ids(run(state_dir, "--tenant", "b-corp")) == [("r2", "b-corp")]
    assert ids(run(state_dir, "--from", "2026-12-01")) == [("r3", "acme")]
    assert ids(run(state_dir, "--to", "2026-11-30", "--tenant", "acme")) == [("r1", "acme"), ("r2", "acme")]
    assert ids(run(state_dir, "--from", "2027-01-01")) == []


def test_a_choice_that_nothing_fits_is_told_on_stderr(state_dir: Path) -> None:
    result = run(state_dir, "--tenant", "nope", "--csv")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == (
        f"headrace usage export: no request of tenant nope on these days in {state_dir}/spool\n"
    )
    assert run(state_dir, "--tenant", "acme").stderr == ""


def test_the_help_explains_every_outcome() -> None:
    said = run(Path(), "--help").stdout
    assert all(f"\n  {outcome} " in said for outcome in get_args(Outcome))


def test_csv_has_headings_and_the_same_rows(state_dir: Path) -> None:
    told = list(csv.DictReader(run(state_dir, "--csv").stdout.splitlines()))
    assert [(one["request_id"], one["cost"]) for one in told if one["tenant_id"] == "b-corp"] == [("r2", "2")]
    assert len(told) == 4


def test_damage_is_named_on_stderr_and_in_the_exit_status(state_dir: Path) -> None:
    segment = state_dir / "spool" / "g1" / "2026-11-30.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b'"r1"', b'"rx"'))
    result = run(state_dir)
    assert result.exit_code == 1
    assert "left out: g1/2026-11-30.jsonl, byte 0" in result.stderr
    assert len(result.stdout.splitlines()) == 3


def test_a_state_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run(tmp_path / "none")
    assert result.exit_code == 2
    assert "none" in result.stderr


def test_nothing_settled_is_nothing_told(tmp_path: Path) -> None:
    assert ids(run(tmp_path)) == []
