"""Packed batches, caches of keys and values, and latent attention, where HEDDLE_TEST_DEVICE says."""

import math

import pytest
import torch

import device_inputs
from agreement import DEVICE, DTYPE
from device_inputs import random
from heddle.torch import flashinfer, serving, varlen_attn

pytestmark = pytest.mark.usefixtures("no_grad")
GENERATOR = device_inputs.GENERATOR

starts = torch.tensor([0, 40, 40, 170, 300], dtype=torch.int32)


def of_sequence(q, k, v, **options):
    """A sequence [L, H, D] by torch's own operations in f64: out, lse."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    i = torch.arange(q.shape[1], device=DEVICE)[:, None] + k.shape[1] - q.shape[1]
    j = torch.arange(k.shape[1], device=DEVICE)
    left, right = options.get("window_size", (-1, -1))
    right = 0 if options.get("causal") else right
    allowed = ((left < 0) | (j >= i - left)) & ((right < 0) | (j <= i + right))
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    scores = scores.masked_fill(~allowed, -torch.inf)
    if "sinks" in options:
        scores = torch.cat([scores, options["sinks"].double()[:, None, None].expand(-1, scores.shape[1], 1)], -1)
    weights = scores.softmax(-1).nan_to_num(0.0)[..., : k.shape[1]]
    return (weights @ v).transpose(0, 1), scores.logsumexp(-1)


def agree(got, want, unit=None):
    unit = torch.finfo(DTYPE).eps if unit is None else unit
    assert (got.double() - want).abs().max() <= 16 * unit * max(1, want.abs().max().item())


OPTIONS = [{}, {"causal": True}, {"window_size": (30, 0)}, {"causal": True, "softcap": 5.0},
           {"causal": True, "sinks": random(8, dtype=torch.float32)}]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options))
def test_packed_sequences(options):
    q, k, v = random(300, 8, 64), random(300, 2, 64), random(300, 2, 64)
    where = starts.to(DEVICE)
    out, lse = serving.varlen_func(q, k, v, where, where, 130, 130, return_softmax_lse=True, **options)
    for a, b in zip(starts, starts[1:]):
        if a < b:
            want, want_lse = of_sequence(q[a:b], k[a:b], v[a:b], **options)
            agree(out[a:b], want)
            agree(lse[:, a:b], want_lse)


def test_varlen_attn():
    q, k, v = (random(300, 4, 64) for _ in range(3))
    where = starts.to(DEVICE)
    out = varlen_attn(q, k, v, where, where, 130, 130, window_size=(-1, 0))
    for a, b in zip(starts, starts[1:]):
        if a < b:
            agree(out[a:b], of_sequence(q[a:b], k[a:b], v[a:b], causal=True)[0])


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options))
@pytest.mark.parametrize("page", [0, 16, 64])
def test_caches(options, page):
    """Rows are appended, then read; page 0 is a cache of rows."""
    lengths, new = torch.tensor([5, 100, 190], dtype=torch.int32), 2
    if page:
        width = 256 // page
        table = torch.randperm(3 * width + 2, generator=GENERATOR)[: 3 * width].view(3, width)
        pools = [random(3 * width + 2, page, 2, 64) for _ in range(2)]
        paged = {"page_table": table.to(DEVICE, torch.int32)}
    else:
        pools, paged = [random(3, 256, 2, 64) for _ in range(2)], {}
    q, k, v = random(3, new, 8, 64), random(3, new, 2, 64), random(3, new, 2, 64)
    out, lse = serving.with_kvcache(
        q, *pools, k, v, cache_seqlens=lengths.to(DEVICE), return_softmax_lse=True, **paged, **options)
    for b in range(3):
        rows = [(pool[table[b].to(DEVICE)].flatten(0, 1) if page else pool[b])[: lengths[b] + new] for pool in pools]
        assert torch.equal(rows[0][-new:], k[b]) and torch.equal(rows[1][-new:], v[b])
        want, want_lse = of_sequence(q[b], *rows, **options)
        agree(out[b], want)
        agree(lse[b], want_lse)


@pytest.mark.parametrize("page", [1, 16, 64])
def test_lists_of_pages(page):
    """Rows are appended to pages in a list, then read: the bits of a table's."""
    lengths, width = torch.tensor([5, 100, 190], dtype=torch.int32), 256 // page
    table = torch.randperm(3 * width + 2, generator=GENERATOR)[: 3 * width].view(3, width).to(torch.int32)
    used = (lengths + 2 + page - 1) // page
    starts = torch.tensor([0, *used.cumsum(0)], dtype=torch.int32, device=DEVICE)
    listed = torch.cat([row[:n] for row, n in zip(table, used)]).to(DEVICE)
    q, k, v = random(3, 2, 8, 64), random(3, 2, 2, 64), random(3, 2, 2, 64)
    pools = [random(3 * width + 2, page, 2, 64) for _ in range(2)]
    others = [pool.clone() for pool in pools]
    options = {"cache_seqlens": lengths.to(DEVICE), "causal": True}
    want = serving.with_kvcache(q, *pools, k, v, page_table=table.to(DEVICE), **options)
    got = serving.with_kvcache(q, *others, k, v, page_table=listed, page_starts=starts, max_seqlen_k=256, **options)
    assert all(torch.equal(x, y) for x, y in zip(pools, others))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("apart", [(), ("q",), ("cache",), ("q", "cache")], ids=str)
def test_latent_attention(apart, heads):
    """Multi-head latent attention of a list of pages: queries and the cache's parts are one tensor or two, each."""
    lengths, page = torch.tensor([300, 17, 0, 64], dtype=torch.int32), 64
    counts = (lengths + page - 1) // page
    indptr = torch.tensor([0, *counts.cumsum(0)], dtype=torch.int32)
    indices = torch.randperm(int(counts.sum()) + 3, generator=GENERATOR)[: int(counts.sum())].to(torch.int32)
    cache, q = random(int(counts.sum()) + 3, page, 576), random(4, heads, 576)
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper()
    given = torch.arange(5, dtype=torch.int32), indptr, indices, lengths
    wrapper.plan(*(x.to(DEVICE) for x in given), heads, 512, 64, page, True, 192**-0.5)
    parts = [x.clone() if "q" in apart else x for x in (q[..., :512], q[..., 512:])]
    caches = [x.clone() if "cache" in apart else x for x in (cache[..., :512], cache[..., 512:])]
    out, lse = wrapper.run(*parts, *caches, return_lse=True)
    for b, n in enumerate(lengths.tolist()):
        rows = cache[indices[indptr[b] : indptr[b + 1]].to(DEVICE).long()].flatten(0, 1)[:n].double()
        scores = torch.einsum("hd,kd->hk", q[b].double(), rows) * 192**-0.5
        want = scores.softmax(-1).nan_to_num() @ rows[:, :512]
        torch.testing.assert_close(out[b].double(), want, atol=1e-5 if DEVICE == "cpu" else 2e-2, rtol=2e-2)
        torch.testing.assert_close(
            lse[b].double() * math.log(2.0), scores.logsumexp(-1), atol=1e-4 if DEVICE == "cpu" else 1e-2, rtol=1e-2)
