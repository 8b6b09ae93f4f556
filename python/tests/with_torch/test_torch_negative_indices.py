"""Computed indices that are negative, or may be: they count from the end of an axis, as torch's do."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention as reference

from heddle.torch import create_block_mask, flex_attention

Q, K, V = (torch.randn(1, 2, rows, 16, generator=torch.Generator().manual_seed(rows)) for rows in (20, 24, 24))


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def mods(table, pairs):
    return {
        "all negative": lambda s, b, h, q, k: s + table[k % 5 - 5],
        "some negative": lambda s, b, h, q, k: s + table[torch.clamp(q - k, -2, 2)],
        "two axes": lambda s, b, h, q, k: s + pairs[h % 2 - 2, k % 7 - 3],
        "a view": lambda s, b, h, q, k: s + pairs[h][k % 7 - 7],
        "none negative": lambda s, b, h, q, k: s + table[k % 5],
    }


@pytest.mark.parametrize("name", mods(None, None))
def test_count_from_the_end(name):
    for length in (5, 9):  # a kept mod serves another shape anew
        mod = mods(numbers(length), numbers(2, length + 2))[name]
        o = flex_attention(Q, K, V, score_mod=mod)
        torch.testing.assert_close(o, reference(Q, K, V, score_mod=mod), atol=1e-5, rtol=1e-5)


def test_a_tensor_of_another_shape_in_the_same_function():
    table = numbers(5)

    def mod(score, b, h, q, k):
        return score + table[k % 5 - 5]

    for length in (5, 8, 5):
        table = numbers(length)
        o = flex_attention(Q, K, V, score_mod=mod)
        torch.testing.assert_close(o, reference(Q, K, V, score_mod=mod), atol=1e-5, rtol=1e-5)


def test_gradients():
    table, other = (numbers(6).requires_grad_() for _ in range(2))
    flex_attention(Q, K, V, score_mod=lambda s, b, h, q, k: s + table[k % 4 - 2]).square().sum().backward()
    bias = other[torch.arange(24) % 4 - 2].expand(20, 24)
    torch.nn.functional.scaled_dot_product_attention(Q, K, V, bias).square().sum().backward()
    torch.testing.assert_close(table.grad, other.grad, atol=1e-4, rtol=1e-4)


def test_masks():
    keep = numbers(6) > 0

    def mask(b, h, q, k):
        return keep[k % 6 - 6] | (q == k)

    o = flex_attention(Q, K, V, block_mask=create_block_mask(mask, 1, 1, 20, 24, device="cpu"))
    kept = torch.where(mask(0, 0, torch.arange(20)[:, None], torch.arange(24)), 0.0, float("-inf"))
    torch.testing.assert_close(o, torch.nn.functional.scaled_dot_product_attention(Q, K, V, kept), atol=1e-5, rtol=1e-5,
                               equal_nan=True)
