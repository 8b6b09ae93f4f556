"""Rows of no elements, which torch's attention takes: scores are 0, or out has no columns."""

import pytest
import torch
from torch.nn import functional

from heddle.torch import flex_attention, scaled_dot_product_attention, varlen_attn

WIDTHS = [(0, 8), (8, 0), (0, 0)]


def inputs(width, of_values, dtype=torch.float64):
    shapes = (2, 2, 5, width), (2, 2, 7, width), (2, 2, 7, of_values)
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": torch.rand(5, 7) > 0.3}])
def test_scaled_dot_product_attention(widths, options):
    q, k, v = inputs(*widths)
    want = functional.scaled_dot_product_attention(q, k, v, **options)
    for _ in range(3):
        got = scaled_dot_product_attention(q, k, v, **options)
        torch.testing.assert_close(got, want)
        with torch.no_grad():
            torch.testing.assert_close(scaled_dot_product_attention(q, k, v, **options), want)
    incoming = torch.randn_like(want)
    ours, torchs = (torch.autograd.grad(x, (q, k, v), incoming, allow_unused=True) for x in (got, want))
    for x, y, of in zip(ours, torchs, (q, k, v)):
        torch.testing.assert_close(x, torch.zeros_like(of) if y is None else y)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("compiles", [False, True])
def test_flex_attention(widths, compiles):
    def call(q, k, v):
        return flex_attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + q_idx - kv_idx, scale=0.5, return_lse=True)

    q, k, v = inputs(*widths)
    torch._dynamo.reset()
    out, lse = (torch.compile(call, fullgraph=True, backend="aot_eager") if compiles else call)(q, k, v)
    scores = 0.5 * (q @ k.mT) + (torch.arange(5)[:, None] - torch.arange(7))
    torch.testing.assert_close(out, scores.softmax(-1) @ v)
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    out.sum().backward()
    torch.testing.assert_close(v.grad, scores.softmax(-1).mT @ torch.ones_like(out))


def test_packed_rows():
    starts = torch.tensor([0, 2, 6], dtype=torch.int32)
    rows, values = torch.randn(6, 2, 0), torch.randn(6, 2, 3)
    out = varlen_attn(rows, rows, values, starts, starts, 4, 4)
    torch.testing.assert_close(out[:2], values[:2].mean(0).expand(2, 2, 3))


def test_no_heads():
    q, k, v = (torch.randn(2, 0, length, 8, requires_grad=True) for length in (5, 7, 7))
    for _ in range(2):
        for attention in (flex_attention, scaled_dot_product_attention):
            out = attention(q, k, v)
            out.sum().backward()
            assert out.shape == (2, 0, 5, 8) and q.grad.shape == q.shape
    rows, starts = torch.randn(5, 0, 8, requires_grad=True), torch.tensor([0, 2, 5], dtype=torch.int32)
    assert varlen_attn(rows, rows, rows, starts, starts, 3, 3).shape == (5, 0, 8)
    with pytest.raises(ValueError, match="Hq=2 and Hkv=0"):
        flex_attention(torch.randn(2, 2, 5, 8), k, v, enable_gqa=True)
