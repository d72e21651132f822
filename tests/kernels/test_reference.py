"""The plain kernels against arithmetic that can be checked by hand, and that they change no input."""

import math

import torch

from kernels import reference


def test_linear_multiplies_by_the_transposed_weight_and_adds_the_bias() -> None:
    x, weight = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    assert reference.linear(x, weight).tolist() == [[11, 17, 23], [4, 6, 8]]
    assert reference.linear(x, weight, torch.tensor([1.0, 0.0, -1.0])).tolist() == [[12, 17, 22], [5, 6, 7]]


def test_linear_of_bfloat16_is_summed_wider() -> None:
    row = torch.ones(1, 4097, dtype=torch.bfloat16)  # a running sum in 8 bits stays at 256
    assert reference.linear(row, row).item() == 4096


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    root = math.sqrt((9 + 16) / 2 + 0.5)
    expected = [[3 / root * 2, 4 / root * 10]]
    weight = torch.tensor([2.0, 10.0], dtype=torch.float64)
    assert torch.allclose(reference.rms_norm(x, weight, 0.5), torch.tensor(expected, dtype=torch.float64))


def test_rms_norm_of_bfloat16_is_computed_wider() -> None:
    x = torch.full((1, 4096), 300.0, dtype=torch.bfloat16)  # the sum of squares is beyond 8 bits of mantissa
    assert reference.rms_norm(x, torch.ones(4096, dtype=torch.bfloat16), 0.0).unique().tolist() == [1.0]


def test_rope_turns_pairs_of_the_two_halves() -> None:
    x = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]], dtype=torch.float64)  # pairs (1, 0) and (0, 2)
    angles = torch.tensor([[math.pi / 2, math.pi]], dtype=torch.float64)
    turned = reference.rope(x, angles.cos(), angles.sin())
    assert torch.allclose(turned, torch.tensor([[[0.0, 0.0, 1.0, -2.0]]], dtype=torch.float64))


def test_silu_mul_gates_the_second_half_with_the_first() -> None:
    gate_up = torch.tensor([[0.0, 1.0, 5.0, 3.0]], dtype=torch.float64)
    expected = torch.tensor([[0.0, 1 / (1 + math.exp(-1)) * 3]], dtype=torch.float64)
    assert torch.allclose(reference.silu_mul(gate_up), expected)


def test_kv_write_puts_tokens_into_their_slots_and_nothing_else() -> None:
    k_cache, v_cache = torch.zeros(3, 1, 2, 1), torch.zeros(3, 1, 2, 1)
    key, value = torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([[[-1.0]], [[-2.0]]])
    reference.kv_write(key, value, k_cache, v_cache, torch.tensor([5, 2]))
    assert k_cache.flatten().tolist() == [0, 0, 2, 0, 0, 1]
    assert v_cache.flatten().tolist() == [0, 0, -2, 0, 0, -1]


def test_attention_weighs_values_by_softmax_of_the_scores() -> None:
    # One head, two tokens in block 1: scores of the last query are 0 and ln 3, so the shares are 1/4 and 3/4.
    k_cache = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64).view(2, 1, 2, 1)
    v_cache = torch.tensor([9.0, 9.0, 4.0, 8.0], dtype=torch.float64).view(2, 1, 2, 1)
    attended = reference.paged_attention(
        torch.tensor([[[5.0]], [[math.log(3)]]], dtype=torch.float64),
        k_cache,
        v_cache,
        torch.tensor([[1]], dtype=torch.int32),
        torch.tensor([0, 2], dtype=torch.int32),
        torch.tensor([2], dtype=torch.int32),
        1.0,
    )
    assert torch.allclose(attended.flatten(), torch.tensor([4.0, 7.0], dtype=torch.float64))
