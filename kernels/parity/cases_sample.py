"""Cases of `sample`: distributions that are hard to cut, each with every way to cut them.

A token at a near tie may be another one, so there only the outcome is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import ModuleType

import torch
from torch import Tensor

from kernels import reference_sample
from kernels.parity.case import Inputs, OpCase, Outputs
from kernels.sample_rows import NEAR_TIE, LogitEdits, RowSampling, Sampled, SampleTile

INF = float("inf")


@dataclass(frozen=True, slots=True)
class Cut:
    """How one row is drawn."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


QUICK = (
    Cut(temperature=3.0),
    Cut(temperature=0.0, top_p=0.5),
    Cut(top_k=20, top_p=0.6),
    Cut(top_k=10**9, top_p=0.9, min_p=0.5),
)
WHOLE = (
    *QUICK,
    Cut(),
    Cut(top_k=1),
    Cut(top_k=2, temperature=0.7),
    Cut(top_p=0.0),
    Cut(top_p=1e-9, min_p=1.0),
    Cut(top_p=0.5, temperature=0.01),
    Cut(top_p=0.9),
    Cut(min_p=0.2),
    Cut(min_p=1.0),
    Cut(min_p=1e-6, temperature=1e15),
    Cut(top_k=40, top_p=0.95, min_p=0.05, temperature=1.3),
    Cut(temperature=1e-5),
)
KINDS = ("usual", "equal", "one hot", "few above -inf", "huge", "ties", "falling", "not finite")
SMALL = SampleTile(num_listed=4, capacity=16, num_ids=64)
"""So that lists end, overflow and are left out within 50 logits."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A row for each of the cuts."""

    kind: str
    vocab_size: int = 50
    cuts: tuple[Cut, ...] = QUICK
    tile: SampleTile | None = SMALL
    is_edited: bool = False

    @property
    def name(self) -> str:
        tile = "" if self.tile is None else f" listed={self.tile.num_listed} of {self.tile.capacity}"
        return f"{self.kind} V={self.vocab_size} rows={len(self.cuts)}{tile}" + " edited" * self.is_edited


def cases(*, whole: bool) -> Iterator[OpCase]:
    yield from map(_case, dict.fromkeys([*_quick(), *_whole()] if whole else _quick()))


def _quick() -> Iterator[Batch]:
    for kind in KINDS:
        yield Batch(kind)
    yield Batch("falling", 16, tile=SampleTile(16, 16, 16))
    yield Batch("ties", is_edited=True)
    yield Batch("usual", 200, tile=SampleTile(16, 64, 128))


def _whole() -> Iterator[Batch]:
    cut_up = (
        (1, SMALL),
        (16, SMALL),
        (50, SMALL),
        (90, SMALL),
        (700, SampleTile(1, 1, 256)),
        (700, SampleTile(16, 64, 128)),
        (700, None),
    )
    for kind, is_edited, (vocab_size, tile) in product(KINDS, (False, True), cut_up):
        yield Batch(kind, vocab_size, WHOLE, tile, is_edited)
    yield Batch("usual", 128256, tile=None)
    yield Batch("usual", 151936, tile=None, is_edited=True)


def _case(batch: Batch) -> OpCase:
    return OpCase(
        op="sample",
        name=batch.name,
        module="kernels.sample",
        dtype=torch.float32,
        make=partial(_make, batch=batch),
        run=partial(_run, tile=batch.tile),
        reference=_reference,
        num_near_ties=_num_near_ties,
    )


def _make(generator: torch.Generator, device: torch.device, batch: Batch) -> Inputs:
    num_rows = len(batch.cuts)
    logits = torch.stack([_logits(batch.kind, batch.vocab_size, generator) for _ in batch.cuts])
    sampling = RowSampling(
        temperature=torch.tensor([cut.temperature for cut in batch.cuts], dtype=torch.float64),
        top_k=torch.tensor([cut.top_k for cut in batch.cuts], dtype=torch.int32),
        top_p=torch.tensor([cut.top_p for cut in batch.cuts], dtype=torch.float64),
        min_p=torch.tensor([cut.min_p for cut in batch.cuts], dtype=torch.float64),
        seed=torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator),
        output_index=torch.randint(0, 2**31 - 1, (num_rows,), generator=generator, dtype=torch.int32),
        sibling=torch.randint(0, 128, (num_rows,), generator=generator, dtype=torch.int32),
    )
    edits = _edits(num_rows, batch.vocab_size, generator)._asdict() if batch.is_edited else {}
    tensors = {"logits": logits, **sampling._asdict(), **edits}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _logits(kind: str, vocab_size: int, generator: torch.Generator) -> Tensor:  # [V] float32
    values = torch.randn(vocab_size, generator=generator)
    some = int(torch.randint(vocab_size, (1,), generator=generator))
    match kind:
        case "usual":
            return 3 * values
        case "equal":
            return torch.full_like(values, -2.5)
        case "one hot":
            return torch.zeros(vocab_size).index_fill(0, torch.tensor(some), 60.0)
        case "few above -inf":
            return values.masked_fill((torch.arange(vocab_size) - some).abs() > 2, -INF)
        case "huge":
            return 1e30 * values.sign() * values.abs().round()
        case "ties":  # 0.0 and -0.0 among them
            return values.round() / 2
        case "falling":
            return -torch.arange(vocab_size) / 32  # so nearly flat that any fault leads to another token
        case "not finite":
            return values.index_fill(0, torch.tensor(some), (float("nan"), INF)[some % 2])
    raise ValueError(kind)


def _edits(num_rows: int, vocab_size: int, generator: torch.Generator) -> LogitEdits:
    """Two biases a row, or none, one of them a mask; penalties for all rows but the second. Some 50 ids, or
    all there are, may have been seen: the reference counts them one by one."""

    def some(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    has_bias = torch.arange(num_rows) % 3 != 1
    has_penalties = torch.arange(num_rows) != 1
    may_be_seen = torch.arange(vocab_size) % max(vocab_size // 50, 1) == 0
    num_biases = 2 * int(has_bias.sum())
    begins = torch.cat((torch.zeros(1), 2 * has_bias.cumsum(0))).int()
    biases = some(-8, 9, num_biases).double() / 8
    biases[::2] = -INF if vocab_size > 2 else 0.5
    return LogitEdits(
        bias_begins=begins,
        bias_token_ids=some(0, vocab_size, num_biases).int(),
        biases=biases,
        repetition=torch.where(has_penalties, some(3, 9, num_rows) / 4, 1.0).double(),
        presence=torch.where(has_penalties, some(-8, 9, num_rows) / 10, 0.0).double(),
        frequency=torch.where(has_penalties, some(-3, 4, num_rows) / 10, 0.0).double(),
        output_counts=some(-3, 4, num_rows, vocab_size).clamp(min=0).int() * may_be_seen,
        is_in_prompt=(some(0, 4, num_rows, vocab_size) == 0) & may_be_seen,
    )


def _run(module: ModuleType, inputs: Inputs, tile: SampleTile | None) -> Outputs:
    return _sure(module.sample(*_arguments(inputs), tile=tile))


def _reference(inputs: Inputs) -> Outputs:
    return _sure(reference_sample.sample(*_arguments(inputs)))


def _arguments(inputs: Inputs) -> tuple[Tensor, RowSampling, LogitEdits | None]:
    sampling = RowSampling(*(inputs[name] for name in RowSampling._fields))
    is_edited = "biases" in inputs
    edits = LogitEdits(*(inputs[name] for name in LogitEdits._fields)) if is_edited else None
    return inputs["logits"], sampling, edits


def _num_near_ties(outputs: Outputs) -> int:
    return int((outputs[1] == NEAR_TIE).sum())


def _sure(sampled: Sampled) -> Outputs:
    is_near = sampled.outcomes == NEAR_TIE
    return sampled.token_ids.masked_fill(is_near, 0), sampled.outcomes
