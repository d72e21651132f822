"""The least that a step can cost: what it must move and compute, against what the machine can.

A step reads every weight once, the KV of its requests' contexts once, and writes the KV of its
tokens. Activations are left out: they stay in caches. Plain arithmetic over a `StepPlan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from engine.config import ModelConfig
from engine.loading.weights import expected_shapes
from engine.step import StepPlan


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Measured (`machine_probe.py`), in the format that the model computes in."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class StepCost:
    num_bytes: int
    num_flops: int

    def least_s(self, limits: MachineLimits) -> float:
        """Moving and computing overlap: the longer of the two."""
        return max(self.num_bytes / limits.bytes_per_s, self.num_flops / limits.flops_per_s)


class ModelCost:
    """What steps of one model cost. `kv_value_bytes` may differ from the weights' `value_bytes`.

    The embedding is a look-up: its matrix is read, and multiplied with, only where the output layer
    uses it (tied) and a token is sampled.
    """

    def __init__(self, model: ModelConfig, *, value_bytes: int, kv_value_bytes: int) -> None:
        total = sum(map(prod, expected_shapes(model).values()))
        self._head_weights = model.vocab_size * model.hidden_size
        self._layer_weights = total - self._head_weights * (1 if model.tie_word_embeddings else 2)
        self._value_bytes = value_bytes
        self._kv_bytes_per_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * kv_value_bytes
        self._flops_per_pair = 4 * model.num_layers * model.num_heads * model.head_dim
        """Of one query with one key: its score, and its share of the sum of values."""

    def of(self, plan: StepPlan) -> StepCost:
        num_tokens = plan.num_scheduled_tokens
        if num_tokens == 0:
            return StepCost(0, 0)
        num_sampled = sum(request.output_index is not None for request in plan.scheduled)
        num_read = sum(r.num_computed_tokens + r.num_scheduled_tokens for r in plan.scheduled)
        weights = self._layer_weights + (self._head_weights if num_sampled else 0)
        flops = 2 * (self._layer_weights * num_tokens + self._head_weights * num_sampled)
        return StepCost(
            num_bytes=weights * self._value_bytes + (num_read + num_tokens) * self._kv_bytes_per_token,
            num_flops=flops + self._flops_per_pair * _num_pairs(plan),
        )


def _num_pairs(plan: StepPlan) -> int:
    """Queries × the keys that each may see: those before it and its own."""
    return sum(
        r.num_scheduled_tokens * r.num_computed_tokens
        + r.num_scheduled_tokens * (r.num_scheduled_tokens + 1) // 2
        for r in plan.scheduled
    )
