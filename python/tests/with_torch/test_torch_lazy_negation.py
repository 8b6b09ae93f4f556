"""torch's lazy negation (z.conj().imag, torch._neg_view), and its zeros without memory, which derivatives make: wherever a
tensor enters, its values count, not its memory."""

import pytest
import torch

from heddle.torch import BlockMask, create_block_mask, flex_attention, scaled_dot_product_attention, serving, varlen_attn

B, H, S, D = 2, 2, 12, 8


def made(*shape):
    torch.manual_seed(len(shape) + shape[-1])
    return torch.randn(*shape, dtype=torch.float64)


q, k, v = made(B, H, S, D), made(B, H, S, D) + 1, made(B, H, S, D) - 1
vector, mask = made(S), made(S, S)
rows, cache = made(S, H, D), made(B, S, H, D)
STARTS = torch.tensor([0, 5, S], dtype=torch.int32)
counts, indices = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)


def with_lists(counts, indices):
    return flex_attention(q, k, v, block_mask=BlockMask.from_kv_blocks(counts, indices, seq_lengths=(S, S)))


# Each is a function of tensors, and these.
ENTRANCES = {
    "flex_attention": (flex_attention, (q, k, v)),
    "a capture": (lambda x: flex_attention(q, k, v, lambda s, b, h, qi, ki: s + x[ki]), (vector,)),
    "a capture in two axes": (lambda x: flex_attention(q, k, v, lambda s, b, h, qi, ki: s + x[qi, ki]), (mask,)),
    "a mask's capture": (
        lambda x: flex_attention(
            q, k, v, block_mask=create_block_mask(lambda b, h, qi, ki: (x[ki] > 0) | (qi == ki), 1, 1, S, S, "cpu")
        ),
        (vector,),
    ),
    "lists of a mask": (
        lambda x: create_block_mask(
            lambda b, h, qi, ki: x[ki] > 0, 1, 1, S, S, "cpu", BLOCK_SIZE=4
        ).kv_num_blocks.double(),
        (vector,),
    ),
    "block lists": (with_lists, (counts, indices)),
    "sdpa": (scaled_dot_product_attention, (q, k, v)),
    "attn_mask": (lambda x: scaled_dot_product_attention(q, k, v, x), (mask,)),
    "attn_mask of 4 axes": (lambda x: scaled_dot_product_attention(q, k, v, x[None, None]), (mask,)),
    "varlen_attn": (lambda *x: varlen_attn(*x, STARTS, STARTS, S, S), (rows, rows + 1, rows - 1)),
    "a cache": (
        lambda new, k, v: serving.with_kvcache(new, k.clone(), v.clone(), new, new, cache_seqlens=3),
        (made(B, 1, H, D), cache, cache + 1),
    ),
    "sinks": (lambda x: serving.varlen_func(rows, rows, rows, STARTS, STARTS, S, S, sinks=x), (made(H),)),
}


def negated(x):
    """The tensor -x, whose memory holds x; or x itself, whose memory holds -x."""
    return torch._neg_view(x)


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("name", ENTRANCES)
def test_values_count(name, grad):
    function, tensors = ENTRANCES[name]
    with torch.set_grad_enabled(grad):
        want = function(*tensors)
        for lazy in range(len(tensors)):
            given = [negated((-x).contiguous()) if i == lazy else x for i, x in enumerate(tensors)]
            assert given[lazy].is_neg() and torch.equal(given[lazy], tensors[lazy])
            for _ in range(2):  # a repeated call goes another way
                got = function(*given)
                assert not got.is_neg() and torch.equal(got, want)


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("name", ENTRANCES)
def test_zeros_without_memory(name, grad):
    function, tensors = ENTRANCES[name]
    with torch.set_grad_enabled(grad):
        for lazy in (i for i, x in enumerate(tensors) if x.is_floating_point()):
            zeros = torch.zeros_like(tensors[lazy])
            bare = torch._efficientzerotensor(zeros.shape, dtype=zeros.dtype)
            assert bare._is_zerotensor()
            want, got = (function(*[one if i == lazy else x for i, x in enumerate(tensors)]) for one in (zeros, bare))
            torch.testing.assert_close(got, want, atol=0, rtol=0, equal_nan=True)


def test_a_gradient_without_memory():
    leaf = q.clone().requires_grad_()
    zeros = torch._efficientzerotensor(q.shape, dtype=q.dtype)
    assert not torch.autograd.grad(flex_attention(leaf, k, v), leaf, zeros)[0].any()


def test_imaginary_parts():
    imag = torch.complex(made(S), vector).conj().imag
    assert imag.is_neg()
    torch.testing.assert_close(
        flex_attention(q, k, v, lambda s, b, h, qi, ki: s + imag[ki]),
        flex_attention(q, k, v, lambda s, b, h, qi, ki: s - vector[ki]),
    )


def test_gradients():
    """Incoming gradients, saved inputs, and the gradients of captures."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v, vector)]
    d_out = made(B, H, S, D) + 3

    def run(wrap):
        a, b, c, bias = (wrap(-x) for x in leaves)
        out = flex_attention(a, b, c, lambda s, _b, h, qi, ki: s + bias[ki])
        return torch.autograd.grad(out, leaves, wrap(-d_out))

    for got, want in zip(run(negated), run(torch.neg)):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_outputs():
    """A lazily negated tensor is written, too."""
    want = varlen_attn(rows, rows, rows, STARTS, STARTS, S, S)
    out = negated(torch.zeros_like(rows))
    got = serving.varlen_func(rows, rows, rows, STARTS, STARTS, S, S, out=out)
    assert got is out and torch.equal(out, want)


def test_everything_dropped():
    """dropout_p=1.0: torch gives zeros, also as gradients."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = scaled_dot_product_attention(*leaves, dropout_p=1.0)
    assert torch.equal(out, torch.zeros_like(out))
    for gradient in torch.autograd.grad(out.sum(), leaves):
        assert torch.equal(gradient, torch.zeros_like(gradient))
    with pytest.raises(ValueError, match="dropout_p is 1.5"):
        scaled_dot_product_attention(q, k, v, dropout_p=1.5)
