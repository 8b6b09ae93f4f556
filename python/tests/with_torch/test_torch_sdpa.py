"""scaled_dot_product_attention and varlen_attn beside torch's."""

import itertools

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as torchs

from heddle.torch import scaled_dot_product_attention, varlen_attn
from torch.nn.attention.varlen import AuxRequest

SHAPES = [
    ((7, 8), (9, 8)),
    ((3, 7, 8), (3, 9, 8)),
    ((1, 7, 8), (3, 9, 8)),
    ((2, 3, 7, 8), (2, 3, 9, 8)),
    ((1, 3, 7, 8), (2, 3, 9, 8)),
    ((2, 1, 7, 8), (2, 3, 9, 8)),
    ((2, 2, 3, 7, 8), (2, 2, 3, 9, 8)),
    ((2, 1, 3, 7, 8), (1, 2, 3, 9, 8)),
]


def agree(got, want):
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, atol=3e-6, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("shapes", SHAPES)
def test_any_rank(shapes):
    q, k, v = torch.randn(shapes[0]), torch.randn(shapes[1]), torch.randn(shapes[1])
    want = torchs(q, k, v)
    agree(scaled_dot_product_attention(q, k, v), want)
    agree(scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3), torchs(q, k, v, is_causal=True, scale=0.3))
    for mask in (torch.randn(7, 9) > 0, torch.randn(7, 9), torch.randn(*want.shape[:-1], 9)):
        agree(scaled_dot_product_attention(q, k, v, mask), torchs(q, k, v, mask))


@pytest.mark.parametrize("shape", [(2, 1, 7, 9), (1, 8, 1, 9), (2, 8, 7, 1), (7, 1)])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_masks_broadcast(shape, kind):
    q, k, v = torch.randn(2, 8, 7, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 12)
    mask = torch.randn(shape)
    mask = mask > 0 if kind == torch.bool else mask
    agree(scaled_dot_product_attention(q, k, v, mask, enable_gqa=True), torchs(q, k, v, mask, enable_gqa=True))


def test_rows_without_keys_are_zero():
    q = torch.randn(1, 1, 4, 8)
    mask = torch.tensor([True, False, True, False])[:, None].expand(4, 4)
    assert not scaled_dot_product_attention(q, q, q, mask)[0, 0, 1::2].any()


def test_a_mask_changed_in_place_is_read_again():
    q, mask = torch.randn(1, 1, 4, 8), torch.ones(4, 4, dtype=torch.bool)
    scaled_dot_product_attention(q, q, q, mask)
    mask[:, 2:] = False
    agree(scaled_dot_product_attention(q, q, q, mask), torchs(q, q, q, mask))


@pytest.mark.parametrize("bias", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize("lengths", [(5, 9), (9, 5), (6, 6)])
def test_causal_bias(bias, lengths):
    q, k = torch.randn(2, 3, lengths[0], 8), torch.randn(2, 3, lengths[1], 8)
    mask = bias(*lengths)
    dense = mask._materialize("cpu")
    want = torchs(q, k, k, dense)
    agree(scaled_dot_product_attention(q, k, k, mask), torch.where(dense.any(-1)[:, None], want, 0.0))


def test_dropout():
    q, v = torch.randn(1, 2, 64, 8), torch.ones(1, 2, 64, 8)
    torch.manual_seed(5)
    first = scaled_dot_product_attention(q, q, v, dropout_p=0.25)
    second = scaled_dot_product_attention(q, q, v, dropout_p=0.25)
    torch.manual_seed(5)
    assert torch.equal(scaled_dot_product_attention(q, q, v, dropout_p=0.25), first) and not torch.equal(first, second)
    assert abs(first.mean() - 1) < 0.1 and first.std() > 0.01


def test_errors_are_torchs():
    q = torch.randn(2, 4, 7, 8)
    for arguments, options in [
        ((q, q.double(), q), {}),
        ((q[0, 0, 0], q, q), {}),
        ((q, q[..., :4], q), {}),
        ((q, q[:, :3], q[:, :3]), {"enable_gqa": True}),
        ((q, q[:, :2], q[:, :2]), {}),
        ((q, q, q), {"attn_mask": torch.ones(7, 7, dtype=torch.int32)}),
    ]:
        for function in (scaled_dot_product_attention, torchs):
            with pytest.raises((RuntimeError, ValueError)):
                function(*arguments, **options)
    with pytest.raises(RuntimeError, match="should not be set when is_causal"):
        scaled_dot_product_attention(q, q, q, torch.ones(7, 7), is_causal=True)
    with pytest.raises(ValueError, match="dropout_p is 1.5"):
        scaled_dot_product_attention(q, q, q, dropout_p=1.5)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 0), (1, 1), (-1, 2), (0, 0)])
def test_varlen(window):
    starts_q = torch.tensor([0, 4, 4, 10], dtype=torch.int32)
    starts_k = torch.tensor([0, 5, 8, 20], dtype=torch.int32)
    q, k, v = torch.randn(10, 2, 8), torch.randn(20, 2, 8), torch.randn(20, 2, 8)
    out, lse = varlen_attn(q, k, v, starts_q, starts_k, 6, 12, window_size=window, return_aux=AuxRequest(lse=True))
    assert lse.shape == (2, 10)
    for begin, end, first, last in zip(starts_q, starts_q[1:], starts_k, starts_k[1:]):
        parts = [x.transpose(0, 1)[None] for x in (q[begin:end], k[first:last], v[first:last])]
        length, keys = parts[0].shape[2], parts[1].shape[2]
        i, j = torch.arange(length)[:, None] + keys - length, torch.arange(keys)
        mask = ((j >= i - window[0]) | (window[0] < 0)) & ((j <= i + window[1]) | (window[1] < 0))
        agree(out[begin:end], torchs(*parts, mask)[0].transpose(0, 1))
    with pytest.raises(ValueError, match="axes"):
        varlen_attn(q[None], k, v, starts_q, starts_k, 6, 12)
    with pytest.raises(ValueError, match="window_size"):
        varlen_attn(q, k, v, starts_q, starts_k, 6, 12, window_size=(-2, 0))


def test_every_small_combination():
    """Lengths around the kernels' tiles, all masks."""
    for q_len, kv_len, causal in itertools.product((1, 15, 17), (1, 31, 33), (False, True)):
        q, k = torch.randn(1, 1, q_len, 32), torch.randn(1, 1, kv_len, 32)
        agree(scaled_dot_product_attention(q, k, k, is_causal=causal), torchs(q, k, k, is_causal=causal))


@pytest.mark.parametrize("shape", [(0, 4, 8), (0, 2, 4, 8), (2, 0, 2, 4, 8), (0, 4, 4, 4, 8)])
def test_an_empty_batch(shape):
    q = torch.randn(shape)
    agree(scaled_dot_product_attention(q, q, q), torchs(q, q, q))


def test_forward_mode_is_refused():
    q = torch.randn(1, 2, 7, 8)
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: scaled_dot_product_attention(x, q, q), (q,), (q,))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, q)
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"), torch.no_grad():
            scaled_dot_product_attention(q, dual, q)
        agree(scaled_dot_product_attention(q, q, q), torchs(q, q, q))


def test_tensor_subclasses():
    class Named(torch.Tensor):
        pass

    class Weights(torch.nn.Parameter):
        pass

    q = torch.randn(1, 2, 7, 8)
    got = scaled_dot_product_attention(q.as_subclass(Named), q, q)
    assert type(got) is Named
    agree(got.as_subclass(torch.Tensor), torchs(q, q, q))
    mask = torch.randn(7, 7)
    got = scaled_dot_product_attention(q, Weights(q, requires_grad=False), q, mask)
    agree(got.as_subclass(torch.Tensor), torchs(q, q, q, mask))


@pytest.mark.parametrize("shape", [(50, 50), (8, 7), (2, 1, 7, 7), (1, 4, 7, 7), (1, 1, 1, 7, 7)])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_masks_that_do_not_broadcast_are_refused(shape, kind):
    for q in (torch.randn(1, 2, 7, 8), torch.randn(2, 7, 8)):
        for attend in (torchs, scaled_dot_product_attention):
            with pytest.raises(RuntimeError):
                attend(q, q, q, torch.zeros(shape, dtype=kind))


@pytest.mark.parametrize("bias", [causal_lower_right(5, 9), causal_lower_right(50, 60)])
def test_a_lower_right_bias_of_other_lengths_is_refused(bias):
    q = torch.randn(1, 2, 7, 8)
    for attend in (torchs, scaled_dot_product_attention):
        with pytest.raises(RuntimeError):
            attend(q, q, q, bias)


@pytest.mark.parametrize("bias", [causal_upper_left(5, 9), causal_lower_right(9, 9)])
def test_other_biases_are_causal_for_any_lengths(bias):
    q, k = torch.randn(1, 2, 7, 8), torch.randn(1, 2, 9, 8)
    agree(scaled_dot_product_attention(q, k, k, bias), torchs(q, k, k, bias))


def jagged(heads, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(n, heads, 16, generator=generator) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_lengths", [[5, 9, 1], [7, 2, 30]], ids=["the queries'", "others"])
def test_nested_tensors(is_causal, kv_lengths):
    lengths = [5, 9, 1]
    nested = jagged(4, lengths, 1), jagged(2, kv_lengths, 2), jagged(2, kv_lengths, 3)
    q, k, v = (x.transpose(1, 2) for x in nested)
    out = scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True, scale=0.3)
    assert out.is_nested and out.shape[0] == 3 and out.shape[1] == 4 and out.shape[3] == 16
    sum(part.square().sum() for part in out.unbind()).backward()
    for n, part in enumerate(out.unbind()):
        one = [x.unbind()[n].detach().requires_grad_() for x in (q, k, v)]
        want = torch.nn.functional.scaled_dot_product_attention(
            *(x.double() for x in one), is_causal=is_causal, enable_gqa=True, scale=0.3)
        torch.testing.assert_close(part.double(), want, atol=1e-5, rtol=1e-5)
        for x, d in zip(nested, torch.autograd.grad(want.square().sum(), one)):
            torch.testing.assert_close(x.grad.unbind()[n], d.transpose(0, 1), atol=1e-4, rtol=1e-4)


def test_nested_tensors_are_refused_by_name():
    q = jagged(4, [5, 9], 1).transpose(1, 2)
    with pytest.raises(RuntimeError, match="all three nested, or none"):
        scaled_dot_product_attention(q, torch.randn(2, 4, 9, 16), torch.randn(2, 4, 9, 16))
    with pytest.raises(RuntimeError, match="attn_mask is given beside nested tensors"):
        scaled_dot_product_attention(q, q, q, torch.ones(1, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="where lengths differ"):
        scaled_dot_product_attention(*(jagged(4, [5, 9], 1),) * 3)


@pytest.mark.parametrize("heads", [(6, 2, 3), (6, 6, 1), (6, 1, 2), (4, 2, 4)])
def test_key_and_value_of_different_numbers_of_heads(heads):
    q, k, v = (torch.randn(2, count, rows, 8, requires_grad=True) for count, rows in zip(heads, (7, 9, 9)))
    got, want = (one(q, k, v, enable_gqa=True) for one in (scaled_dot_product_attention, torchs))
    agree(got, want)
    for one, other in zip(*(torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (got, want))):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    with torch.no_grad():
        agree(scaled_dot_product_attention(q[0], k[0], v[0], enable_gqa=True), torchs(q[0], k[0], v[0], enable_gqa=True))
    with pytest.raises(RuntimeError, match=f"have {heads[0]}, {heads[1]} and 5 heads"):
        scaled_dot_product_attention(q, k, v[:, :1].expand(-1, 5, -1, -1), enable_gqa=True)
