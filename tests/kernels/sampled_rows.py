"""The engine's rows as the tensors that the kernel takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from engine.sampled_row import SampledRow
from kernels.sample_rows import LogitEdits, RowSampling


def sampling_of(rows: Sequence[SampledRow]) -> RowSampling:
    params = [row.params for row in rows]
    return RowSampling(
        temperature=torch.tensor([one.temperature for one in params], dtype=torch.float64),
        top_k=torch.tensor([one.top_k for one in params], dtype=torch.int32),
        top_p=torch.tensor([one.top_p for one in params], dtype=torch.float64),
        min_p=torch.tensor([one.min_p for one in params], dtype=torch.float64),
        seed=torch.tensor([(one.seed + 2**63) % 2**64 - 2**63 for one in params]),
        output_index=torch.tensor([row.output_index for row in rows], dtype=torch.int32),
        sibling=torch.tensor([row.sibling for row in rows], dtype=torch.int32),
    )


def edits_of(rows: Sequence[SampledRow], vocab_size: int) -> LogitEdits:
    params = [row.params for row in rows]
    biases = [(*row.params.logit_bias, *((i, -torch.inf) for i in row.masked_token_ids)) for row in rows]
    begins = torch.tensor([0, *(len(of_row) for of_row in biases)]).cumsum(0)
    counts = torch.zeros(len(rows), vocab_size, dtype=torch.int32)
    is_in_prompt = torch.zeros(len(rows), vocab_size, dtype=torch.bool)
    for place, row in enumerate(rows):
        num_prompt_tokens = len(row.history) - row.output_index
        is_in_prompt[place, list(row.history[:num_prompt_tokens])] = True
        for token_id, count in Counter(row.history[num_prompt_tokens:]).items():
            counts[place, token_id] = count
    return LogitEdits(
        bias_begins=begins.int(),
        bias_token_ids=torch.tensor([i for of_row in biases for i, _ in of_row], dtype=torch.int32),
        biases=torch.tensor([bias for of_row in biases for _, bias in of_row], dtype=torch.float64),
        repetition=torch.tensor([one.repetition_penalty for one in params], dtype=torch.float64),
        presence=torch.tensor([one.presence_penalty for one in params], dtype=torch.float64),
        frequency=torch.tensor([one.frequency_penalty for one in params], dtype=torch.float64),
        output_counts=counts,
        is_in_prompt=is_in_prompt,
    )
