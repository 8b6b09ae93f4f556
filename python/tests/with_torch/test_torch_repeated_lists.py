"""Repeated calls with torch's own block masks, and the tensors that repeated calls write: no call takes what belongs to
another mask, function or shape."""

import functools
import gc

import pytest
import torch
from agreement import DEVICE
from torch.nn.attention import flex_attention as flex

from heddle.torch import _block_mask, flex_attention

L = 8
RANDOM = torch.Generator().manual_seed(3)
Q, K, V = (torch.randn(2, 2, L, 8, generator=RANDOM).to(DEVICE) for _ in range(3))
i = torch.arange(L)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def dense(allowed):
    bias = torch.where(allowed, 0.0, -torch.inf).to(DEVICE)
    return torch.nn.functional.scaled_dot_product_attention(Q, K, V, bias)


def check(mask, allowed):
    for _ in range(3):
        torch.testing.assert_close(flex_attention(Q, K, V, block_mask=mask), dense(allowed))


def made(mask_mod=causal, block=4):
    return flex.create_block_mask(mask_mod, None, None, L, L, DEVICE, BLOCK_SIZE=block)


TRIANGLE = i[:, None] >= i


@pytest.mark.parametrize("name", ["seq_lengths", "BLOCK_SIZE"])
def test_sizes_that_are_replaced(name):
    mask = made()
    check(mask, TRIANGLE)
    setattr(mask, name, (4, 4) if name == "seq_lengths" else (2, 2))
    with pytest.raises((ValueError, RuntimeError), match="block_mask|kv_num_blocks"):
        flex_attention(Q, K, V, block_mask=mask)
    setattr(mask, name, (8, 8) if name == "seq_lengths" else (4, 4))
    check(mask, TRIANGLE)


def test_sizes_in_a_list_may_change_in_place():
    mask = made()
    mask.BLOCK_SIZE = [4, 4]
    check(mask, TRIANGLE)
    mask.BLOCK_SIZE[:] = [2, 2]
    with pytest.raises(ValueError, match=r"kv_num_blocks is \[1, 1, 2\]"):
        flex_attention(Q, K, V, block_mask=mask)


def test_each_list_in_place_and_replaced():
    for name in ("kv_num_blocks", "full_kv_num_blocks"):
        for replaced in (False, True):
            mask = made()
            check(mask, TRIANGLE)
            if replaced:
                setattr(mask, name, torch.zeros_like(getattr(mask, name)))
            else:
                getattr(mask, name).zero_()
            is_diagonal = i[:, None] // 4 == i // 4
            check(mask, TRIANGLE & (~is_diagonal if name == "kv_num_blocks" else is_diagonal))


def test_lists_of_inference_tensors_are_read_again():
    with torch.inference_mode():
        mask = made()
        check(mask, TRIANGLE)
        if DEVICE == "cpu":
            mask.kv_num_blocks.zero_()
            check(mask, TRIANGLE & (i[:, None] // 4 != i // 4))


def test_masks_that_end_leave_nothing():
    before = len(_block_mask._made)
    for width in range(1, 6):
        mask = made(lambda b, h, q, kv, width=width: (q >= kv) & (q - kv < width))
        check(mask, TRIANGLE & (i[:, None] - i < width))
        del mask
        gc.collect()
    assert len(_block_mask._made) <= before


def test_code_is_shared_by_functions_of_other_kinds():
    """A partial, a method and a function of one code, whose steps differ."""
    slopes, steeper = torch.tensor([0.5, 0.25], device=DEVICE), torch.tensor([2.0, 4.0], device=DEVICE)

    def score(score, b, h, q_idx, kv_idx, slopes=slopes):
        return score - slopes[h] * (q_idx - kv_idx)

    class Holder:
        method = score

    partial = functools.partial(score, slopes=steeper)
    for _ in range(3):
        for mod, of in ((score, slopes), (partial, steeper), (score, slopes)):
            bias = -of[:, None, None] * (i[:, None] - i).to(DEVICE)
            want = torch.nn.functional.scaled_dot_product_attention(Q, K, V, bias)
            torch.testing.assert_close(flex_attention(Q, K, V, mod), want)
    score.__defaults__ = (steeper,)
    bias = -steeper[:, None, None] * (i[:, None] - i).to(DEVICE)
    torch.testing.assert_close(flex_attention(Q, K, V, score),
                               torch.nn.functional.scaled_dot_product_attention(Q, K, V, bias))
    score.__code__ = (lambda score, b, h, q_idx, kv_idx, slopes=None: score * 0.0).__code__
    flat = V.mean(2, keepdim=True).expand_as(V)
    torch.testing.assert_close(flex_attention(Q, K, V, score), flat)


LAYOUTS = {
    "contiguous": lambda x: x,
    "rows of heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "heads first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "with gaps": lambda x: torch.cat((x, x), -1)[..., :8],
    "every second row": lambda x: torch.cat((x, x), 2)[:, :, ::2],
    "one sequence": lambda x: x[:1],
    "one head of a slice": lambda x: x[:, 1:],
    "a parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_results_have_the_strides_of_empty_like(name, mode):
    q, k, v = (LAYOUTS[name](x) for x in (Q, K, V))
    with mode():
        for _ in range(3):
            out = flex_attention(q, k, v)
            like = torch.empty_like(q)
            assert type(out) is torch.Tensor and out.stride() == like.stride() and out.dtype == q.dtype
            assert out.is_inference() == (mode is torch.inference_mode) and not out.requires_grad
            want = torch.nn.functional.scaled_dot_product_attention(*(x.contiguous() for x in (q, k, v)))
            torch.testing.assert_close(out, want)
