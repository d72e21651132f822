"""What parity does not say of dense attention: autograd, memory, equal bits, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kernels import reference_flash
from kernels.attention_flash import flash_attention, flash_backward, flash_forward
from kernels.attention_tile import AttentionTile
from kernels.parity.runner import device_in_use

TILE = AttentionTile(16, 16, num_warps=4, num_stages=2)


def random(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device_in_use())


def made(num_queries: int = 20, num_keys: int = 20, head_dim: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of two heads over one key head."""
    shapes = ((1, 2, num_queries, head_dim), (1, 1, num_keys, head_dim), (1, 1, num_keys, head_dim))
    q, k, v = (random(*shape, seed=seed) for seed, shape in enumerate(shapes))
    return q, k, v


def test_values_are_weighed_by_the_softmax_of_the_scores() -> None:
    # Two keys with scores 0 and ln 3: weights 1/4 and 3/4, and the sum of exponentials is 4.
    q, k, v = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 2, 16)
    q[..., 0], k[0, 0, 1, 0] = math.log(3.0), 1.0
    v[0, 0, :, 0] = torch.tensor([4.0, 8.0])
    out, lse = flash_forward(*(x.to(device_in_use()) for x in (q, k, v)), 1.0, causal=False)
    assert out[0, 0, 0, 0].item() == pytest.approx(7.0)
    assert lse.item() == pytest.approx(math.log(4.0))


def test_autograd_goes_back_through_it_also_from_views() -> None:
    q, k, v = (x.transpose(2, 3).contiguous().transpose(2, 3).requires_grad_() for x in made(9, 12))
    flash_attention(q, k, v, 0.25, causal=True).sum().backward()
    d_out = torch.ones_like(q)
    expected = reference_flash.gradients(d_out, q, k, v, 0.25, causal=True)
    for leaf, gradient in zip((q, k, v), expected, strict=True):
        assert leaf.grad is not None
        assert torch.allclose(leaf.grad.double(), gradient, rtol=1e-5, atol=1e-5)


def test_a_gradient_of_a_gradient_is_refused_and_not_wrong() -> None:
    q, k, v = (x.requires_grad_() for x in made(4, 4))
    squares = flash_attention(q, k, v, 0.25, causal=False).square()
    (d_q,) = torch.autograd.grad(squares.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        d_q.sum().backward()


def test_equal_inputs_give_equal_bits() -> None:
    q, k, v = made()
    out, lse = flash_forward(q, k, v, 0.25, causal=True, tile=TILE)
    first, second = (flash_backward(out, q, k, v, out, lse, 0.25, causal=True, tile=TILE) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_tiles_change_nothing() -> None:
    q, k, v = made(17, 33)
    for tile in (None, AttentionTile(32, 16, 4, 1)):
        out, lse = flash_forward(q, k, v, 0.25, causal=True, tile=tile)
        expected, expected_lse = flash_forward(q, k, v, 0.25, causal=True, tile=TILE)
        assert torch.allclose(out, expected, rtol=1e-5, atol=1e-6)
        assert torch.allclose(lse, expected_lse, rtol=1e-5, atol=1e-6)


class _Largest(TorchFunctionMode):
    """The most bytes that any tensor made inside holds."""

    nbytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.nbytes = max(self.nbytes, made.nbytes if isinstance(made, Tensor) else 0)
        return made


def test_no_tensor_of_all_scores_is_made() -> None:
    """Forward and back: nothing larger than the queries themselves."""
    q, k, v = (x.requires_grad_() for x in made(36, 36))
    with _Largest() as largest:
        flash_attention(q, k, v, 0.25, causal=True).sum().backward()
    assert largest.nbytes == q.nbytes < 36 * 36 * 4


def test_what_does_not_fit_is_refused() -> None:
    q, k, v = made(9, 12)
    out, lse = flash_forward(q, k, v, 0.25, causal=False, tile=TILE)
    with pytest.raises(ValueError, match="must be contiguous, keys and values of one shape"):
        flash_forward(q[..., ::2], k[..., ::2], v[..., ::2], 0.25, causal=False)
    with pytest.raises(ValueError, match="must be contiguous, keys and values of one shape"):
        flash_forward(q, k, v[:, :, 1:].contiguous(), 0.25, causal=False)
    with pytest.raises(ValueError, match="2 heads cannot share 3 key heads"):
        flash_forward(q, *(x.expand(-1, 3, -1, -1).contiguous() for x in (k, v)), 0.25, causal=False)
    with pytest.raises(ValueError, match="causal attention of 9 queries over 5 keys"):
        flash_forward(q, *(x[:, :, :5].contiguous() for x in (k, v)), 0.25, causal=True)
    with pytest.raises(ValueError, match="the output, its gradient and its sums must be contiguous"):
        flash_backward(out[..., :1].expand_as(out), q, k, v, out, lse, 0.25, causal=False)
