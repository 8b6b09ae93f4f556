"""Packed batches and KV caches as serving engines call them, beside attention in f64."""

import functools

import numpy as np
import pytest
import torch

from heddle.torch import serving

HEADS, KV_HEADS, D = 4, 2, 16


def reference(q, k, v, *, causal=False, window=(-1, -1), softcap=0.0, sinks=None, scale=None, score=None):
    """[L, H, D], [S, Hkv, D] in f64; returns out and lse [H, L]."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = softcap * torch.tanh(s / softcap) if softcap else s
    s = score(s) if score else s
    i, j = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0], torch.arange(k.shape[0])
    left, right = window[0], 0 if causal else window[1]
    s = s.masked_fill(~(((j >= i - left) | (left < 0)) & ((j <= i + right) | (right < 0))), -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.double()[:, None, None].expand(-1, s.shape[1], 1)], -1)
    p = s.softmax(-1).nan_to_num(0.0)[..., : k.shape[0]]
    return torch.einsum("hqk,khd->qhd", p, v), s.logsumexp(-1)


def agree(got, want):
    torch.testing.assert_close(got.double(), want, atol=5e-6, rtol=1e-5)


OPTIONS = [
    {},
    {"causal": True},
    {"window": (5, 0)},
    {"window": (3, 2)},
    {"causal": True, "window": (9, -1), "softcap": 5.0},
    {"sinks": torch.randn(HEADS)},
    {"scale": 0.5, "causal": True, "sinks": torch.randn(HEADS)},
]


def arguments(options):
    names = {"window": "window_size", "scale": "softmax_scale"}
    return {names.get(name, name): value for name, value in options.items()}


@pytest.mark.parametrize("options", OPTIONS)
def test_varlen(options):
    starts = torch.tensor([0, 5, 5, 17], dtype=torch.int32)
    starts_k = torch.tensor([0, 9, 12, 40], dtype=torch.int32)
    q, k, v = torch.randn(17, HEADS, D), torch.randn(40, KV_HEADS, D), torch.randn(40, KV_HEADS, D)
    out = torch.full_like(q, torch.nan)
    got, lse = serving.varlen_func(
        q, k, v, starts, starts_k, 12, 28, out=out, return_softmax_lse=True, **arguments(options)
    )
    assert got is out
    for a, b, c, d in zip(starts, starts[1:], starts_k, starts_k[1:]):
        want, want_lse = reference(q[a:b], k[c:d], v[c:d], **options)
        agree(out[a:b], want)
        agree(lse[:, a:b], want_lse)


def paged(lengths, page, width):
    """A pool of pages in a shuffled order, and the tables of its sequences."""
    batch = len(lengths)
    generator = torch.Generator().manual_seed(page)
    pool = [torch.randn(batch * width + 3, page, KV_HEADS, D, generator=generator) for _ in range(2)]
    order = torch.randperm(batch * width + 3, generator=generator)[: batch * width]
    return *pool, order.view(batch, width).to(torch.int32)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("page", [1, 8, 16])
def test_paged_cache(options, page):
    lengths = torch.tensor([5, 17, 30], dtype=torch.int32)
    k_pool, v_pool, table = paged(lengths, page, 48 // page)
    q, k, v = torch.randn(3, 2, HEADS, D), torch.randn(3, 2, KV_HEADS, D), torch.randn(3, 2, KV_HEADS, D)
    got, lse = serving.with_kvcache(
        q, k_pool, v_pool, k, v, cache_seqlens=lengths, page_table=table, return_softmax_lse=True, **arguments(options)
    )
    for b in range(3):
        keys, values = (pool[table[b].long()].reshape(-1, KV_HEADS, D)[: lengths[b] + 2] for pool in (k_pool, v_pool))
        assert torch.equal(keys[-2:], k[b]) and torch.equal(values[-2:], v[b])
        want, want_lse = reference(q[b], keys, values, **options)
        agree(got[b], want)
        agree(lse[b], want_lse)


def listed(table, used):
    """The rows of a table one after the other, each as far as it is used."""
    parts = [row[:n] for row, n in zip(table, used)]
    starts = torch.tensor([0, *torch.cumsum(torch.as_tensor(used), 0)], dtype=torch.int32)
    return dict(page_table=torch.cat(parts), page_starts=starts)


@pytest.mark.parametrize("page", [1, 8, 16])
def test_lists_of_pages(page):
    lengths = torch.tensor([5, 17, 30], dtype=torch.int32)
    caches = [paged(lengths, page, 48 // page) for _ in range(2)]
    table = caches[0][2]
    lists = listed(table, [-(-(int(n) + 2) // page) for n in lengths])
    q, k, v = torch.randn(3, 2, HEADS, D), torch.randn(3, 2, KV_HEADS, D), torch.randn(3, 2, KV_HEADS, D)
    out = [serving.with_kvcache(q, *cache[:2], k, v, cache_seqlens=lengths, causal=True, **pages)
           for cache, pages in zip(caches, (dict(page_table=table), lists))]
    assert torch.equal(*out)
    assert all(torch.equal(a, b) for a, b in zip(*(cache[:2] for cache in caches)))
    starts = torch.tensor([0, 2, 4, 6], dtype=torch.int32)
    packed = [serving.varlen_func(q.flatten(0, 1), *caches[0][:2], starts, None, 2, 32, seqused_k=lengths, **pages)
              for pages in (dict(page_table=table), lists)]
    assert torch.equal(*packed)
    recorded = [x.clone() for x in caches[0][:2]]
    serving.append(*recorded, k.clone().requires_grad_(), v, lengths, **lists)
    assert all(torch.equal(a, b) for a, b in zip(recorded, caches[0][:2]))
    with pytest.raises(ValueError, match=r"lengths\[2\] is 31, and 2 new rows follow; the cache has room for"):
        serving.append(*recorded, k, v, lengths + torch.tensor([0, 0, 1]), **listed(table, [48 // page, 48 // page, 30 // page]))
    with pytest.raises(ValueError, match="page_starts is given without page_table"):
        serving.varlen_func(q.flatten(0, 1), *caches[0][:2], starts, starts, 2, 32, page_starts=starts)


def test_a_cache_of_rows():
    lengths = torch.tensor([3, 0], dtype=torch.int32)
    k_cache, v_cache = torch.randn(2, 12, KV_HEADS, D), torch.randn(2, 12, KV_HEADS, D)
    q, k = torch.randn(2, 1, HEADS, D), torch.randn(2, 1, KV_HEADS, D)
    out = torch.empty_like(q)
    serving.with_kvcache(q, k_cache, v_cache, k, k, cache_seqlens=lengths, causal=True, out=out)
    for b in range(2):
        n = lengths[b] + 1
        assert torch.equal(k_cache[b, n - 1], k[b, 0])
        agree(out[b], reference(q[b], k_cache[b, :n], v_cache[b, :n])[0])
    agree(
        serving.with_kvcache(q, k_cache, v_cache, cache_seqlens=4)[0],
        reference(q[0], k_cache[0, :4], v_cache[0, :4])[0],
    )


def test_paged_prefill_with_mods():
    lengths = torch.tensor([20, 9], dtype=torch.int32)
    k_pool, v_pool, table = paged(lengths, 8, 3)
    starts = torch.tensor([0, 6, 10], dtype=torch.int32)
    q = torch.randn(10, HEADS, D)
    slopes = torch.rand(HEADS)
    got = serving.varlen_func(
        q,
        k_pool,
        v_pool,
        starts,
        None,
        6,
        24,
        seqused_k=lengths,
        page_table=table,
        score_mod=lambda score, b, h, q_idx, kv_idx: score + slopes[h],
    )
    for b, (first, last) in enumerate(zip(starts, starts[1:])):
        keys, values = (pool[table[b].long()].reshape(-1, KV_HEADS, D)[: lengths[b]] for pool in (k_pool, v_pool))
        want = reference(q[first:last], keys, values, score=lambda s: s + slopes.double()[:, None, None])[0]
        agree(got[first:last], want)


def test_descales():
    lengths = torch.tensor([10, 6], dtype=torch.int32)
    k_cache, v_cache = (torch.randn(2, 12, KV_HEADS, D).to(torch.float8_e4m3fn) for _ in range(2))
    k_descale, v_descale = torch.rand(2, KV_HEADS) + 0.5, torch.rand(2, KV_HEADS) + 0.5
    q = torch.randn(2, 1, HEADS, D, dtype=torch.bfloat16)
    got = serving.with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, k_descale=k_descale, v_descale=v_descale)
    for b in range(2):
        keys = k_cache[b, : lengths[b]].double() * k_descale[b, None, :, None]
        values = v_cache[b, : lengths[b]].double() * v_descale[b, None, :, None]
        torch.testing.assert_close(got[b].double(), reference(q[b], keys, values)[0], atol=3e-2, rtol=1e-2)


def turned(x, positions, cos, sin, interleaved):
    """Rows [n, H, D], the row i of position positions[i], as their definition turns them."""
    half = cos.shape[1]
    first, second = (x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2]) if interleaved else (
        x[..., :half], x[..., half : 2 * half])
    c, s = cos[positions][:, None], sin[positions][:, None]
    made = first * c - second * s, second * c + first * s
    whole = torch.stack(made, -1).flatten(-2) if interleaved else torch.cat(made, -1)
    return torch.cat((whole, x[..., 2 * half :]), -1)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_rotary_embeddings_of_appended_rows(interleaved, causal):
    lengths, rows, new = torch.tensor([3, 0], dtype=torch.int32), torch.tensor([4, 1]), 3
    k_cache, v_cache = torch.randn(5, 12, KV_HEADS, D), torch.randn(5, 12, KV_HEADS, D)
    q, k, v = torch.randn(2, new, HEADS, D), torch.randn(2, new, KV_HEADS, D), torch.randn(2, new, KV_HEADS, D)
    angles = torch.arange(20)[:, None] * torch.rand(D // 4)
    cos, sin = angles.cos(), angles.sin()
    before = k_cache.clone()
    got = serving.with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, cache_batch_idx=rows, causal=causal,
                               rotary_cos=cos, rotary_sin=sin, rotary_interleaved=interleaved)
    for b in range(2):
        at = torch.arange(new) + lengths[b]
        torch.testing.assert_close(k_cache[rows[b], at], turned(k[b], at, cos, sin, interleaved))
        own = turned(q[b], at if causal else lengths[b].expand(new), cos, sin, interleaved)
        n = lengths[b] + new
        want = reference(own, k_cache[rows[b], :n], v_cache[rows[b], :n], window=(-1, 0) if causal else (-1, -1))[0]
        agree(got[b], want)
    untouched = [0, 2, 3]
    assert torch.equal(k_cache[untouched], before[untouched])


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (4, 0), "softcap": 3.0}])
def test_padding_on_the_left(options):
    lengths, padding = torch.tensor([9, 6], dtype=torch.int32), torch.tensor([0, 4], dtype=torch.int32)
    k_cache, v_cache = torch.randn(2, 12, KV_HEADS, D), torch.randn(2, 12, KV_HEADS, D)
    q = torch.randn(2, 2, HEADS, D)
    call = functools.partial(serving.with_kvcache, q, k_cache, v_cache, cache_seqlens=lengths, **arguments(options))
    got = call(cache_leftpad=padding)
    for b in range(2):
        keys, values = (x[b, padding[b] : lengths[b]] for x in (k_cache, v_cache))
        agree(got[b], reference(q[b], keys, values, **options)[0])
    with pytest.raises(ValueError, match="mask_mod is given beside cache_leftpad"):
        serving.with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, cache_leftpad=padding,
                             mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)


def test_factors_of_appended_rows():
    caches = torch.zeros(2, 2, 12, KV_HEADS, D, dtype=torch.float8_e4m3fn)
    k, v = torch.randn(2, 4, KV_HEADS, D, dtype=torch.bfloat16), torch.randn(2, 4, KV_HEADS, D, dtype=torch.bfloat16)
    factors = torch.tensor([[0.5, 0.25], [2.0, 1.0]])[:, :KV_HEADS]
    serving.append(*caches, k, v, torch.tensor([0, 5]), k_descale=factors, v_descale=factors)
    for b, first in enumerate((0, 5)):
        stored = caches[0, b, first : first + 4].double() * factors[b, None, :, None]
        torch.testing.assert_close(stored, k[b].double(), atol=2e-2, rtol=0.07)
    serving.append(*caches, k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn), torch.tensor([0, 5]),
                   k_descale=factors, v_descale=factors)
    assert torch.equal(caches[1, 1, 5:9].double(), v[1].to(torch.float8_e4m3fn).double())


def test_appended_rows_under_compile_and_autograd():
    lengths = torch.tensor([3, 5], dtype=torch.int32)
    q, k = torch.randn(2, 1, HEADS, D), torch.randn(2, 1, KV_HEADS, D)
    caches = torch.randn(2, 2, 12, KV_HEADS, D)
    other = caches.clone()
    call = lambda own, k: serving.with_kvcache(q, *own, k, k, cache_seqlens=lengths, causal=True)  # noqa: E731
    want = call(caches, k)
    got = torch.compile(call, fullgraph=True, backend="aot_eager")(other, k)
    assert torch.equal(got, want) and torch.equal(other, caches)
    rows = k.clone().requires_grad_()
    own = [x.clone() for x in caches]
    serving.append(*own, rows, rows, lengths)
    own[0].sum().backward()
    assert torch.equal(rows.grad, torch.ones_like(rows))
    angles = torch.ones(12, 2)
    for given in ((rows, rows, q), (k, k, q.clone().requires_grad_())):
        with pytest.raises(NotImplementedError, match="k, v or q requires a gradient, and a rotary embedding"):
            serving.append(*own, *given[:2], lengths, rotary=serving.Rotary(angles, angles, True), q=given[2])


def test_bad_input():
    q, cache = torch.randn(1, 1, HEADS, D), torch.randn(1, 4, KV_HEADS, D)
    lengths = torch.tensor([4], dtype=torch.int32)
    new = torch.randn(1, 1, KV_HEADS, D)
    before = cache.clone()
    with pytest.raises(ValueError, match=r"cache_seqlens\[0\] is 4, and 1 new rows follow; the cache has room for 4 rows"):
        serving.with_kvcache(q, cache, cache.clone(), new, new, cache_seqlens=lengths)
    assert torch.equal(cache, before)
    with pytest.raises(ValueError, match="one of k and v"):
        serving.with_kvcache(q, cache, cache, new, cache_seqlens=lengths)
    with pytest.raises(ValueError, match="mask_mod is given beside"):
        serving.with_kvcache(
            q, cache, cache, cache_seqlens=lengths, causal=True, mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx
        )
    starts = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(ValueError, match="seqused_k"):
        serving.varlen_func(q[0], cache, cache, starts, None, 1, 4, page_table=torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match="cu_seqlens_k"):
        serving.varlen_func(q[0], cache[0], cache[0], starts, None, 1, 4)


def test_sinks_of_f64_queries():
    q, cache = torch.randn(2, 3, 2, 8, dtype=torch.float64), torch.randn(2, 9, 2, 8, dtype=torch.float64)
    sinks = torch.randn(2)
    got = serving.with_kvcache(q, cache, cache, cache_seqlens=9, sinks=sinks)
    for entry in range(2):
        want, _ = reference(q[entry], cache[entry], cache[entry], sinks=sinks)
        torch.testing.assert_close(got[entry], want, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("options", OPTIONS)
def test_used_queries(options):
    starts, starts_k = torch.tensor([0, 5, 9, 17]), torch.tensor([0, 9, 12, 40])
    used, used_k = torch.tensor([3, 0, 8]), torch.tensor([7, 3, 25])
    q, k, v = torch.randn(17, HEADS, D), torch.randn(40, KV_HEADS, D), torch.randn(40, KV_HEADS, D)
    got, lse = serving.varlen_func(
        q, k, v, starts.int(), starts_k.int(), 12, 28, seqused_q=used.int(), seqused_k=used_k.int(),
        return_softmax_lse=True, **arguments(options)
    )
    for n in range(3):
        a, b, c = starts[n], starts[n] + used[n], starts_k[n]
        want, want_lse = reference(q[a:b], k[c : c + used_k[n]], v[c : c + used_k[n]], **options)
        agree(got[a:b], want)
        agree(lse[:, a:b], want_lse)
        assert not got[b : starts[n + 1]].any()
    with pytest.raises(ValueError, match="mask_mod is given beside seqused_q"):
        serving.varlen_func(q, k, v, starts.int(), starts_k.int(), 12, 28, seqused_q=used.int(),
                            mask_mod=lambda b, h, i, j: i >= j)


def test_rows_behind_the_last_sequence_have_no_gradient():
    starts = torch.tensor([0, 5, 12], dtype=torch.int32)
    q, k, v = (torch.randn(20, heads, D, requires_grad=True) for heads in (HEADS, KV_HEADS, KV_HEADS))
    out = serving.varlen_func(q, k, v, starts, starts, 12, 12, causal=True)
    own = serving.varlen_func(q[:12], k[:12], v[:12], starts, starts, 12, 12, causal=True)
    assert torch.equal(out[:12], own) and not out[12:].any()
    d_out = torch.randn_like(out)
    d_out[12:] = torch.nan
    gradients = torch.autograd.grad(out, (q, k, v), d_out)
    for one, other in zip(gradients, torch.autograd.grad(own, (q, k, v), d_out[:12])):
        assert torch.equal(one[:12], other[:12]) and not one[12:].any()


def test_one_length_of_all_sequences():
    """An int of Python's, NumPy's, or of a bool."""
    cache, q = torch.randn(2, 9, KV_HEADS, D), torch.randn(2, 1, HEADS, D)
    want = serving.with_kvcache(q, cache, cache, cache_seqlens=torch.tensor([5, 5], dtype=torch.int32))
    for length in (5, np.int64(5), np.array(5)):
        assert torch.equal(serving.with_kvcache(q, cache, cache, cache_seqlens=length), want)
