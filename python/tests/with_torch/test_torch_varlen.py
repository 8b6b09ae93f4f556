"""varlen_attn and varlen_attn_out: bounds, keys that count, pages, and what is refused."""

import inspect

import pytest
import torch
from test_torch_serving import KV_HEADS, D, HEADS, agree, paged, reference
from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl, varlen

import heddle.torch
from heddle.torch import serving, varlen_attn, varlen_attn_out

STARTS, STARTS_K = (torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 5, 6], [0, 9, 16, 30]))
USED = torch.tensor([7, 0, 14], dtype=torch.int32)
torch.manual_seed(5)
q, k, v = torch.randn(6, HEADS, D), torch.randn(30, KV_HEADS, D), torch.randn(30, KV_HEADS, D)
FORMS = {
    "varlen_attn": lambda q, k, v, a, b, **options: varlen_attn(
        q, k, v, STARTS, STARTS_K, a, b, window_size=(-1, 0), enable_gqa=True, **options
    ),
    "serving": lambda q, k, v, a, b, **options: serving.varlen_func(
        q, k, v, STARTS, STARTS_K, a, b, causal=True, **options
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_keys_that_do_not_count_reach_nothing(form, dtype):
    """The rows behind them hold NaN. The last key that counts ends the causal diagonal."""
    keys, values = k.clone(), v.clone()
    for first, used, end in zip(STARTS_K, USED, STARTS_K[1:]):
        keys[first + used : end] = values[first + used : end] = torch.nan
    got = FORMS[form](q, keys, values, 3, 14, seqused_k=USED.to(dtype))
    for a, b, c, used in zip(STARTS, STARTS[1:], STARTS_K, USED):
        agree(got[a:b], reference(q[a:b], k[c : c + used], v[c : c + used], causal=True)[0])


def test_gradients_of_the_keys_that_count():
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    got = torch.autograd.grad(FORMS["varlen_attn"](*leaves, 3, 14, seqused_k=USED).square().sum(), leaves)
    outs = [
        reference(leaves[0][a:b], leaves[1][c : c + used], leaves[2][c : c + used], causal=True)[0]
        for a, b, c, used in zip(STARTS, STARTS[1:], STARTS_K, USED)
    ]
    want = torch.autograd.grad(torch.cat(outs).square().sum(), leaves)
    for one, other in zip(got, want):
        torch.testing.assert_close(one, other.nan_to_num(0.0), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bounds", [(4, 15), (6, 30), (7, 31), (512, 1 << 20)])
def test_bounds_change_nothing(form, bounds):
    assert torch.equal(FORMS[form](q, k, v, *bounds), FORMS[form](q, k, v, 3, 14))
    with pytest.raises(ValueError, match="max_(q|seqlen_q) 2"):
        FORMS[form](q, k, v, 2, 14)
    with pytest.raises(ValueError, match="max_(k|seqlen_k) 13"):
        FORMS[form](q, k, v, 3, 13)


@pytest.mark.parametrize("bound", [14, 16, 500])
def test_pages(bound):
    pool_k, pool_v, table = paged(USED, 8, 2)
    options = {"seqused_k": USED, "window_size": (-1, 0), "enable_gqa": True}
    got = varlen_attn(q, pool_k, pool_v, STARTS, None, 3, bound, block_table=table, **options)
    want = serving.varlen_func(
        q, pool_k, pool_v, STARTS, None, 3, 14, page_table=table, seqused_k=USED, causal=True
    )
    assert torch.equal(got, want)
    table[1] = -1  # the sequence without keys has no page
    assert torch.equal(varlen_attn(q, pool_k, pool_v, STARTS, None, 3, 14, block_table=table, **options), want)


def test_into_a_tensor():
    out = torch.full_like(q, torch.nan)
    made, lse = varlen_attn_out(
        out, q, k, v, STARTS, STARTS_K, 3, 14, enable_gqa=True, return_aux=varlen.AuxRequest(lse=True)
    )
    want, want_lse = varlen_attn(
        q, k, v, STARTS, STARTS_K, 3, 14, enable_gqa=True, return_aux=varlen.AuxRequest(lse=True)
    )
    assert made is out and torch.equal(out, want) and torch.equal(lse, want_lse)
    with pytest.raises(RuntimeError, match="out= is given"):
        varlen_attn_out(out, q.clone().requires_grad_(), k, v, STARTS, STARTS_K, 3, 14, enable_gqa=True)


def test_refusals():
    table = torch.zeros(3, 2, dtype=torch.int32)
    for options, error, sentence in (
        ({}, ValueError, "enable_gqa=True"),
        ({"enable_gqa": True, "num_splits": 1}, NotImplementedError, "num_splits is 1"),
        ({"enable_gqa": True, "window_size": (-2, 0)}, ValueError, "window_size"),
        ({"enable_gqa": True, "block_table": table}, ValueError, "3, 4 and 4 are accepted"),
    ):
        with pytest.raises(error, match=sentence):
            varlen_attn(q, k, v, STARTS, STARTS_K, 3, 14, **options)
    with pytest.raises(ValueError, match="neither is given"):
        varlen_attn(q, k, v, STARTS, None, 3, 14, enable_gqa=True)
    pages = torch.randn(4, 8, KV_HEADS, D)
    with pytest.raises(ValueError, match="both are given"):
        varlen_attn(q, pages, pages, STARTS, STARTS_K, 3, 14, enable_gqa=True, block_table=table, seqused_k=USED)
    with pytest.raises(ValueError, match="without seqused_k"):
        varlen_attn(q, pages, pages, STARTS, None, 3, 14, enable_gqa=True, block_table=table)
    with pytest.raises(ValueError, match=r"seqused_k\[0\] is 10"):
        varlen_attn(q, k, v, STARTS, STARTS_K, 3, 14, enable_gqa=True, seqused_k=USED + 3)


@pytest.mark.skipif("seqused_k" not in inspect.signature(varlen.varlen_attn).parameters, reason="torch 2.12 and later")
@pytest.mark.filterwarnings("ignore:Warning only once")
def test_torchs_functions_lead_here():
    """torch's own varlen_attn and varlen_attn_out on the flash-attention implementation 'heddle'."""
    pool_k, pool_v, table = paged(USED, 8, 2)
    activate_flash_attention_impl("heddle")
    try:
        options = {"window_size": (-1, 0), "enable_gqa": True, "seqused_k": USED}
        got = varlen.varlen_attn(q, pool_k, pool_v, STARTS, None, 3, 16, block_table=table, **options)
        want = varlen_attn(q, pool_k, pool_v, STARTS, None, 3, 16, block_table=table, **options)
        assert torch.equal(got, want)
        out = torch.empty_like(q)
        varlen.varlen_attn_out(out, q, k, v, STARTS, STARTS_K, 3, 14, **options)
        assert torch.equal(out, varlen_attn(q, k, v, STARTS, STARTS_K, 3, 14, **options))
        with pytest.raises(NotImplementedError, match="num_splits"):
            varlen.varlen_attn(q, k, v, STARTS, STARTS_K, 3, 14, num_splits=1, **options)
    finally:
        restore_flash_attention_impl()
