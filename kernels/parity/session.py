"""One run of parity: the chosen ops on one device, beside their references or beside a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.parity.archive import Archive, ArchiveError, GreedyAnswer, read, write
from kernels.parity.case import OpCase
from kernels.parity.catalogue import OPS, cases_of
from kernels.parity.runner import Row, check
from kernels.parity.store import (
    GreedyAnswers,
    ModelFailed,
    Prompts,
    answers_of,
    greedy_rows,
    held_to,
    record,
    versions,
)


@dataclass(frozen=True)
class Session:
    ops: Sequence[str]
    is_whole: bool
    device: torch.device
    greedy: Callable[[Prompts | None], GreedyAnswers] | None
    """A model's greedy tokens, for given prompts or its own; raises ValueError. None: no model."""
    tell: Callable[[str], None]
    """Takes a line now and then: which op it is at."""

    def check(self) -> list[Row]:
        """Every case against its reference."""
        return [row for case in self._cases() for row in check(case, self.device)]

    def save(self, path: Path) -> None:
        """Runs every case once more and keeps it. Raises ArchiveError or ModelFailed."""
        records = [record(case, self.device) for case in self._cases()]
        said = [] if self.greedy is None else self._answers(None)
        write(path, Archive(versions(self.device), records, said))

    def hold_to(self, path: Path, *, is_exact: bool) -> list[Row]:
        """Every stored case of the ops; all there are, if all ops are asked for.

        Raises ArchiveError, also where there is nothing to compare, or ModelFailed.
        """
        stored = read(path, self.device)
        self.tell(f"{path} was made by {stored.versions}")
        is_all = set(self.ops) == set(OPS)
        records = [record for record in stored.records if is_all or record.op in self.ops]
        known = {case.key: case for op in self.ops for case in cases_of(op, whole=True)}
        rows = [row for one in records for row in held_to(one, known, is_exact=is_exact)]
        rows += self._greedy_rows(stored.greedy)
        if not rows:
            raise ArchiveError(f"{path} holds nothing of {', '.join(self.ops)}")
        return rows

    def _greedy_rows(self, stored: Sequence[GreedyAnswer]) -> Iterator[Row]:
        if stored and self.greedy is not None:
            yield from greedy_rows(stored, self._answers([answer.prompt_token_ids for answer in stored]))

    def _answers(self, prompts: Prompts | None) -> list[GreedyAnswer]:
        assert self.greedy is not None
        self.tell("greedy tokens of the model")
        try:
            return answers_of(self.greedy(prompts))
        except ValueError as error:
            raise ModelFailed(str(error)) from None

    def _cases(self) -> Iterator[OpCase]:
        for op in self.ops:
            cases = list(cases_of(op, whole=self.is_whole))
            self.tell(f"{op}: {len(cases)} cases")
            yield from cases
