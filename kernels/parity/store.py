"""Outputs kept, and the present code held to them: the same inputs, output by output."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
import triton
from torch import Tensor

from kernels.parity.archive import GreedyAnswer, Record, Versions
from kernels.parity.case import OpCase
from kernels.parity.runner import Row, broken, make_inputs, row, run_poisoned
from kernels.parity.tolerance import Difference, compare

NEAR_TIE = 1e-3
"""Two best logits closer than this may change places in float32 without anything being wrong."""

Prompts = Sequence[Sequence[int]]
GreedyAnswers = Iterable[tuple[Sequence[int], Sequence[int], Sequence[float]]]
"""Of each prompt: its token ids, the output's, and how far before the second best each output token was."""
GreedyModel = Callable[[str, Prompts | None], GreedyAnswers]
"""(model, prompts or the model's own) → answers. The engine runs it, which this room may not import."""


class ModelFailed(Exception):
    """The model of the greedy tokens cannot be run, in one line."""


def versions(device: torch.device) -> Versions:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu, interpreted"
    return Versions(importlib.metadata.version("headrace"), str(torch.__version__), triton.__version__, name)


def record(case: OpCase, device: torch.device) -> Record:
    """Runs it once."""
    inputs = make_inputs(case, device)
    return Record(case.op, case.name, inputs, run_poisoned(case, inputs))


def held_to(stored: Record, cases: Mapping[str, OpCase], *, is_exact: bool) -> list[Row]:
    """The present code on stored inputs. Within the tolerance of the case's type, or equal.

    A row without an index has no difference at all.
    """
    case = cases.get(f"{stored.op} {stored.name}")
    if case is None:
        return [
            Row(stored.op, stored.name, "stored", 0, float("inf"), float("inf"), None, "no such case now")
        ]
    try:
        outputs = run_poisoned(case, stored.inputs)
    except Exception as error:  # as in the runner: a failure, and the other cases are still of interest
        return [broken(case, f"{type(error).__name__}: {error}", "stored")]
    if len(outputs) != len(stored.outputs):
        return [broken(case, f"{len(outputs)} outputs, not {len(stored.outputs)}", "stored")]
    return [
        row(case, "stored", number, _difference(output, before, case.dtype, is_exact))
        for number, (output, before) in enumerate(zip(outputs, stored.outputs, strict=True))
    ]


def _difference(output: Tensor, stored: Tensor, dtype: torch.dtype, is_exact: bool) -> Difference:
    found = compare(output, stored, dtype)
    if not is_exact or found.reason is not None or found.index is None:
        return found
    first = tuple((output != stored).nonzero()[0].tolist())
    return Difference(found.relative, found.max_abs, first, "not equal")


def answers_of(told: GreedyAnswers) -> list[GreedyAnswer]:
    """Raises ValueError for an answer that has not a margin for each token, or what the model raises."""
    return [GreedyAnswer(list(prompt), list(said), list(by)) for prompt, said, by in told]


def greedy_rows(before: Sequence[GreedyAnswer], now: Sequence[GreedyAnswer]) -> Iterator[Row]:
    """One row a prompt: the first token that differs, unless the two best were nearly equal there.

    Then the rest follows from it and says nothing; such a row has an index and no failure.
    """
    for number, (stored, answer) in enumerate(zip(before, now, strict=True)):
        name, token_ids = f"prompt {number}", answer.token_ids
        if token_ids == stored.token_ids:
            yield Row("greedy", name, "stored", 0, 0.0, 0.0, None, None)
            continue
        pairs = zip(token_ids, stored.token_ids, strict=False)
        at = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
        if at is None:
            failure: str | None = f"{len(token_ids)} tokens, not {len(stored.token_ids)}"
            at = min(len(token_ids), len(stored.token_ids))
        elif stored.margins[at] < NEAR_TIE:
            failure = None
        else:
            failure = (
                f"token {token_ids[at]}, not {stored.token_ids[at]} (before by {stored.margins[at]:.3g})"
            )
        yield Row("greedy", name, "stored", 0, 0.0, 0.0, (at,), failure)
