"""Dense attention and its gradients as written down: every score of every head, in float64.

The oracle of `attention_flash.py`. Shapes: B batches of H query heads in H / KVH groups over KVH key heads;
M queries and L keys of D values.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention(
    q: Tensor,  # [B, H, M, D]
    k: Tensor,  # [B, KVH, L, D]
    v: Tensor,  # [B, KVH, L, D]
    scale: float,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """softmax(scale · q · kᵀ) · v [B, H, M, D] and ln Σ exp(scale · q · kᵀ) [B, H, M], in float64.

    Causal: query i sees the keys up to i + L - M.
    """
    group = q.shape[1] // k.shape[1]
    key, value = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = q.double() @ key.transpose(2, 3) * scale
    if causal:
        scores = scores.masked_fill(~visible(q.shape[2], k.shape[2]).to(q.device), float("-inf"))
    return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1)


def gradients(
    d_out: Tensor,  # [B, H, M, D]
    q: Tensor,  # [B, H, M, D]
    k: Tensor,  # [B, KVH, L, D]
    v: Tensor,  # [B, KVH, L, D]
    scale: float,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `d_out` becomes at q, k and v, in float64: by autograd, through every score."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    out, _ = attention(q, k, v, scale, causal=causal)
    d_q, d_k, d_v = torch.autograd.grad(out, (q, k, v), d_out.double())
    return d_q, d_k, d_v


def visible(num_queries: int, num_keys: int) -> Tensor:
    """Which keys the queries see, the last of them all: bool [num_queries, num_keys]."""
    query = torch.arange(num_keys - num_queries, num_keys)[:, None]
    return torch.arange(num_keys) <= query
