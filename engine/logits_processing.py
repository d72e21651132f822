"""What changes a row's logits before the draw: bias, penalties, mask, in this order.

A row with a NaN or +inf keeps one under all of these, so that it is still seen afterwards. A token id
outside the vocabulary is a ValueError: as an index it would wrap around.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from engine.sampled_row import SampledRow


def process_logits(
    logits: Tensor,  # [R, vocab]
    rows: Sequence[SampledRow],
) -> Tensor:  # [R, vocab] float64, a copy
    """Each row's logits as it is to be drawn from, temperature apart. Raises ValueError."""
    processed = logits.to(torch.float64, copy=True)
    for values, row in zip(processed, rows, strict=True):
        _add_bias(values, row.params.logit_bias)
        if row.params.has_penalties:
            _penalise_repetition(values, row)
            _penalise_output(values, row)
        _mask(values, row.masked_token_ids)
    return processed


def _add_bias(logits: Tensor, logit_bias: Sequence[tuple[int, float]]) -> None:
    if logit_bias:
        token_ids, biases = zip(*logit_bias, strict=True)
        logits.index_add_(0, _index("logit_bias", token_ids, logits), logits.new_tensor(biases))


def _penalise_repetition(logits: Tensor, row: SampledRow) -> None:
    """l / r if l > 0, else l · r, for each token in prompt or output (Keskar et al., 2019)."""
    factor = row.params.repetition_penalty
    if factor != 1.0 and row.history:
        seen = _index("history", set(row.history), logits)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / factor, values * factor)


def _penalise_output(logits: Tensor, row: SampledRow) -> None:
    """l - presence - frequency · count, for each token in the output, as in OpenAI's API."""
    check_history(row)
    presence, frequency = row.params.presence_penalty, row.params.frequency_penalty
    counts = Counter(row.history[len(row.history) - row.output_index :])
    if counts and (presence or frequency):
        times = logits.new_tensor(list(counts.values()))
        logits[_index("history", counts, logits)] -= presence + frequency * times


def _mask(logits: Tensor, token_ids: Collection[int]) -> None:
    if token_ids:
        logits[_index("masked_token_ids", token_ids, logits)] += -torch.inf  # added: a NaN stays one


def _index(name: str, token_ids: Collection[int], logits: Tensor) -> Tensor:
    check_token_ids(name, token_ids, len(logits))
    return torch.tensor(list(token_ids), device=logits.device)


def check_token_ids(name: str, token_ids: Collection[int], vocab_size: int) -> None:
    """Raises ValueError."""
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        raise ValueError(f"{name} holds a token id outside the vocabulary")


def check_history(row: SampledRow) -> None:
    """Raises ValueError."""
    if row.output_index > len(row.history):
        raise ValueError("the history of a row with penalties is shorter than its output")
