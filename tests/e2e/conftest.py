"""A cluster of tapes, whose members may end, for all tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from engine.tape import prompt_hash
from tests.e2e.served import Served

LONG = "long"
"""A prompt that the tape answers with 2,000 tokens."""

ENDLESS = "endless"
POISON = 3
"""A byte that no good prompt has: a replica that computes it ends."""
NUM_REPLICAS = 3
NUM_GATEWAYS = 2
STEADY_TEXTS = {f"prompt {length}": "0123456789" * (length // 10) for length in (20, 60, 200, 400)}
"""What clients ask again and again, and its answers."""

Tapes = dict[str, list[int]]


def tape_rows(tapes: dict[str, list[int]]) -> str:
    """A tape file: prompt text → token ids, for `/v1/completions` on the byte vocabulary."""
    rows = [
        {"prompt_hash": prompt_hash(list(prompt.encode())), "token_ids": ids} for prompt, ids in tapes.items()
    ]
    rows.append({"prompt_hash": "*", "token_ids": list(b"Any other prompt.")})
    return "\n".join(json.dumps(row) for row in rows)


TAPES: Tapes = {
    LONG: list(b"0123456789" * 200),
    "stop": list(b"ABCDEFGHIJK"),
    "flag": list("🇫🇷 and 한국어 and é".encode()),
    "cut": list("한".encode()),
}


@pytest.fixture(scope="package")
def tape_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Three replicas behind two gateways. Tests that end some of them wait until all are back.

    It does not stay for the other folders' tests: a cluster takes a fifth of a processor even when idle.
    """
    state_dir = tmp_path_factory.mktemp("tape")
    tape = state_dir / "tape.jsonl"
    answers = {prompt: list(text.encode()) for prompt, text in STEADY_TEXTS.items()}
    tape.write_text(tape_rows(TAPES | answers | {ENDLESS: list(b"x" * 6000)}))
    options = ("--kv-memory", "64M", "--fault", f"poison:{POISON}", "--drain-limit-s", "60")
    sizes = ("--replicas", str(NUM_REPLICAS), "--gateways", str(NUM_GATEWAYS))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADRACE_ALLOW_FAULTS", "1")
        served = Served(state_dir, "--model", f"tape:{tape}?step_ms=5", *options, *sizes)
    yield served
    assert served.close() == 0
