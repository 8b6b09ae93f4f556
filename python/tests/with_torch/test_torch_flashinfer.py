"""FlashInfer's wrappers and functions as serving engines call them, beside attention in f64."""

import math

import pytest
import torch
from test_torch_serving import reference

import heddle.torch
from heddle.torch import flashinfer
from heddle.mods import alibi_slopes

HEADS, KV_HEADS, D, PAGE = 6, 2, 16, 4
LENGTHS = [9, 4, 0, 17, 1]
QUERIES = [3, 4, 1, 1, 1]


class Cache:
    """Requests of LENGTHS rows in pages that are shuffled; unused rows are NaN."""

    def __init__(self, layout="NHD", dtype=torch.float32):
        generator = torch.Generator().manual_seed(3)
        counts = [-(-n // PAGE) for n in LENGTHS]
        self.indptr = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32)
        self.indices = torch.randperm(sum(counts) + 2, generator=generator)[: sum(counts)].to(torch.int32)
        self.last = torch.tensor([n - (c - 1) * PAGE if c else 0 for n, c in zip(LENGTHS, counts)], dtype=torch.int32)
        self.k, self.v = ([torch.randn(n, KV_HEADS, D, generator=generator) for n in LENGTHS] for _ in range(2))
        pages = torch.full((sum(counts) + 2, 2, PAGE, KV_HEADS, D), math.nan)
        for b, n in enumerate(LENGTHS):
            for row in range(n):
                page = self.indices[self.indptr[b] + row // PAGE]
                pages[page, 0, row % PAGE], pages[page, 1, row % PAGE] = self.k[b][row], self.v[b][row]
        self.pages = (pages if layout == "NHD" else pages.transpose(2, 3).contiguous()).to(dtype)

    def lists(self):
        return self.indptr, self.indices, self.last


def agree(got, want):
    out, lse = got
    torch.testing.assert_close(out.double(), want[0], atol=5e-6, rtol=1e-5)
    torch.testing.assert_close(lse.double(), want[1].T / math.log(2.0), atol=5e-6, rtol=1e-5)


OPTIONS = [
    ({}, {}),
    ({"window_left": 5}, {"window": (5, -1)}),
    ({"logits_soft_cap": 4.0, "sm_scale": 0.5}, {"softcap": 4.0, "scale": 0.5}),
]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("given", "meant"), OPTIONS)
def test_decode(layout, given, meant):
    cache, q = Cache(layout), torch.randn(len(LENGTHS), HEADS, D)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(None, layout)
    wrapper.plan(*cache.lists(), HEADS, KV_HEADS, D, PAGE, **given)
    sinks = torch.randn(HEADS)
    for extra in ({}, {"sinks": sinks}):
        out, lse = wrapper.run(q, cache.pages, return_lse=True, **extra)
        for b in range(len(LENGTHS)):
            agree((out[b : b + 1], lse[b : b + 1]), reference(q[b : b + 1], cache.k[b], cache.v[b], **meant, **extra))
        if not extra:
            pair = tuple(cache.pages.unbind(1))
            assert torch.equal(wrapper.run(q, pair), out)
            assert torch.equal(wrapper.run(q, cache.pages, out=torch.empty_like(q)), out)


def test_decode_of_several_queries_is_causal():
    cache, q = Cache(), torch.randn(len(LENGTHS) * 3, HEADS, D)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper()
    wrapper.plan(*cache.lists(), HEADS, KV_HEADS, D, PAGE)
    out, lse = wrapper.run(q, cache.pages, q_len_per_req=3, return_lse=True)
    for b in range(len(LENGTHS)):
        rows = slice(3 * b, 3 * b + 3)
        agree((out[rows], lse[rows]), reference(q[rows], cache.k[b], cache.v[b], causal=True))
    one = wrapper.run(q[: len(LENGTHS)], cache.pages)
    agree_last, _ = reference(q[3:4], cache.k[3], cache.v[3])
    torch.testing.assert_close(one[3:4].double(), agree_last, atol=5e-6, rtol=1e-5)


class LatentCache:
    """Requests of LENGTHS rows, each of a latent part and a rotary one, in the pages of Cache."""

    def __init__(self, latent, rope):
        self.lists, self.latent = Cache(), latent
        generator = torch.Generator().manual_seed(5)
        self.rows = [torch.randn(n, latent + rope, generator=generator) for n in LENGTHS]
        self.pages = torch.full((self.lists.pages.shape[0], PAGE, latent + rope), math.nan)
        for b, n in enumerate(LENGTHS):
            for row in range(n):
                self.pages[self.lists.indices[self.lists.indptr[b] + row // PAGE], row % PAGE] = self.rows[b][row]

    def parts(self, x):
        return x[..., : self.latent], x[..., self.latent :]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("apart", [(), ("q",), ("cache",), ("q", "cache")], ids=str)
def test_latent_attention(causal, apart):
    cache, starts = LatentCache(16, 8), torch.tensor([0, *torch.tensor(QUERIES).cumsum(0)], dtype=torch.int32)
    q = torch.randn(sum(QUERIES), HEADS, 24)
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper()
    wrapper.plan(starts, cache.lists.indptr, cache.lists.indices, torch.tensor(LENGTHS), HEADS, 16, 8, PAGE, causal, 0.3)
    parts, caches = cache.parts(q), cache.parts(cache.pages)
    if "q" in apart:
        parts = [x.clone() for x in parts]
    if "cache" in apart:
        caches = [x.clone() for x in caches]
    out, lse = wrapper.run(*parts, *caches, return_lse=True)
    for b, n in enumerate(LENGTHS):
        own = slice(starts[b], starts[b + 1])
        rows = cache.rows[b].unsqueeze(1)
        want = reference(q[own], rows, rows[..., :16], scale=0.3, **({"window": (-1, 0)} if causal else {}))
        agree((out[own], lse[own]), want)
    natural = wrapper.run(*parts, *caches, return_lse=True, return_lse_base_on_e=True)[1]
    torch.testing.assert_close(natural, lse * math.log(2.0))
    into, of_lse = torch.empty_like(out), torch.empty_like(lse)
    wrapper.run(*parts, *caches, into, of_lse, True)
    assert torch.equal(into, out) and torch.equal(of_lse, lse)


def test_latent_attention_refuses():
    cache, ones = LatentCache(16, 8), torch.arange(6, dtype=torch.int32)
    planned = (ones, cache.lists.indptr, cache.lists.indices, torch.tensor(LENGTHS), HEADS, 16, 8, PAGE, True, 0.3)
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper()
    q = cache.parts(torch.randn(5, HEADS, 24))
    with pytest.raises(RuntimeError, match="before plan"):
        wrapper.run(*q, *cache.parts(cache.pages))
    wrapper.plan(*planned, kv_layout="independent-split", scale_mode="default", enable_pdl=True)
    with pytest.raises(ValueError, match=r"kpe_cache has shape \[\d+, 4, 8\], and ckv_cache \[\d+, 4, 16\]; equal extents"):
        wrapper.run(*q, cache.pages[..., :16], cache.pages[1:, :, 16:])
    with pytest.raises(ValueError, match=r"q_pe has shape \[5, 6, 16\]; \[rows, 6, 8\] is accepted"):
        wrapper.run(q[0], q[0], *cache.parts(cache.pages))
    for given in ({"kv_len": ones}, {"page_table": ones}, {"profiler_buffer": ones}):
        with pytest.raises(NotImplementedError, match=f"{next(iter(given))} is given"):
            wrapper.run(*q, *cache.parts(cache.pages), **given)
    for given in ({"use_sinks": True}, {"skip_softmax": True}, {"output_scale": "per-tensor"}, {"seq_lens": ones}):
        with pytest.raises(NotImplementedError, match=f"{next(iter(given))} is given"):
            wrapper.plan(*planned, **given)


def test_a_latent_plan_for_graphs():
    cache, ones = LatentCache(16, 8), torch.arange(6, dtype=torch.int32)
    buffers = ones, torch.empty(6), torch.empty(30, dtype=torch.int32), torch.empty(5)
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(None, True, *buffers)
    addresses = set()
    for shorter in (0, 1):
        lengths = torch.clamp(torch.tensor(LENGTHS) - shorter, min=0)
        wrapper.plan(ones, cache.lists.indptr, cache.lists.indices, lengths, HEADS, 16, 8, PAGE, True, 0.3)
        own = wrapper._pages.pages, wrapper._pages.starts, wrapper._pages.lengths, wrapper._starts
        addresses.add(tuple(x.data_ptr() for x in own))
        assert wrapper._pages.lengths.tolist() == lengths.tolist()
    assert len(addresses) == 1
    with pytest.raises(ValueError, match="qo_indptr has a request of 2 queries; up to 1 are accepted"):
        wrapper.plan(2 * ones, cache.lists.indptr, cache.lists.indices, lengths, HEADS, 16, 8, PAGE, True, 0.3)


def test_a_plan_for_graphs_keeps_its_addresses():
    cache, q = Cache(), torch.randn(len(LENGTHS), HEADS, D)
    buffers = torch.empty(len(LENGTHS) + 1), torch.empty(30, dtype=torch.int32), torch.empty(len(LENGTHS))
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(None, "NHD", True, False, *buffers)
    addresses = set()
    for last in (cache.last, torch.clamp(cache.last - 1, min=0)):
        wrapper.plan(cache.indptr, cache.indices, last, HEADS, KV_HEADS, D, PAGE)
        addresses.add((wrapper._pages.pages.data_ptr(), wrapper._pages.starts.data_ptr(), wrapper._pages.lengths.data_ptr()))
        out = wrapper.run(q, cache.pages)
        for b, n in enumerate(flashinfer.get_seq_lens(cache.indptr, last, PAGE).tolist()):
            want, _ = reference(q[b : b + 1], cache.k[b][:n], cache.v[b][:n])
            torch.testing.assert_close(out[b : b + 1].double(), want, atol=5e-6, rtol=1e-5)
    assert len(addresses) == 1
    with pytest.raises(ValueError, match="accept 5 requests and up to 30 pages"):
        wrapper.plan(cache.indptr[:-1], cache.indices, cache.last[:-1], HEADS, KV_HEADS, D, PAGE)
    with pytest.raises(ValueError, match="use_cuda_graph is given without the buffers"):
        flashinfer.BatchDecodeWithPagedKVCacheWrapper(None, "NHD", True)


def packed_bits(masks):
    """Each request's pairs as bytes, the lowest bit first."""
    parts = []
    for mask in masks:
        bits = torch.nn.functional.pad(mask.reshape(-1).int(), (0, -mask.numel() % 8)).view(-1, 8)
        parts.append((bits << torch.arange(8)).sum(1).to(torch.uint8))
    return torch.cat(parts)


def alibi_of(queries, keys):
    """FlashInfer's bias: a query's position is its number in the request."""
    return torch.from_numpy(alibi_slopes(HEADS))[:, None, None] * (torch.arange(keys) - torch.arange(queries)[:, None])


def capped(score, cap):
    return score if cap == math.inf else cap * torch.tanh(score / cap)


@pytest.mark.parametrize("keys", ["pages", "packed"])
@pytest.mark.parametrize("mask", ["full", "causal", "window", "custom", "custom bits", "custom in a window", "alibi",
                                  "capped alibi"])
def test_prefill(keys, mask):
    cache, starts = Cache(), torch.tensor([0, *torch.tensor(QUERIES).cumsum(0)], dtype=torch.int32)
    q = torch.randn(sum(QUERIES), HEADS, D)
    masks = [torch.rand(m, n) < 0.7 for m, n in zip(QUERIES, LENGTHS)]
    given, meant = {
        "full": ({}, {}),
        "causal": ({"causal": True, "logits_soft_cap": 4.0}, {"causal": True, "softcap": 4.0}),
        "window": ({"causal": True, "window_left": 2}, {"causal": True, "window": (2, 0)}),
        "custom": ({"custom_mask": torch.cat([x.reshape(-1) for x in masks])}, {}),
        "custom bits": ({"packed_custom_mask": packed_bits(masks)}, {}),
        "custom in a window": ({"custom_mask": torch.cat([x.reshape(-1) for x in masks]), "window_left": 2},
                               {"window": (2, -1)}),
        "alibi": ({"causal": True, "pos_encoding_mode": "ALIBI"}, {"causal": True}),
        "capped alibi": ({"causal": True, "pos_encoding_mode": "ALIBI", "logits_soft_cap": 4.0}, {"causal": True}),
    }[mask]
    if keys == "pages":
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper()
        wrapper.plan(starts, *cache.lists(), HEADS, KV_HEADS, D, PAGE, **given)
        out, lse = wrapper.run(q, cache.pages, return_lse=True)
    else:
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper()
        kv_starts = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32)
        wrapper.plan(starts, kv_starts, HEADS, KV_HEADS, D, **given)
        out, lse = wrapper.run(q, torch.cat(cache.k), torch.cat(cache.v), return_lse=True)
    for b, seen in enumerate(masks):
        score = None
        if mask.startswith("custom"):
            score = lambda s, seen=seen: s.masked_fill(~seen, -torch.inf)
        if mask.endswith("alibi"):
            cap = given.get("logits_soft_cap", math.inf)
            score = lambda s, cap=cap, seen=seen: capped(s + alibi_of(*seen.shape), cap)
        rows = slice(starts[b], starts[b + 1])
        agree((out[rows], lse[rows]), reference(q[rows], cache.k[b], cache.v[b], score=score, **meant))


def test_the_type_of_out():
    cache, q = Cache(), torch.randn(len(LENGTHS), HEADS, D)
    for given in (torch.float64, "float64"):
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper()
        wrapper.plan(*cache.lists(), HEADS, KV_HEADS, D, PAGE, o_data_type=given)
        out = wrapper.run(q, cache.pages)
        assert out.dtype == torch.float64
        torch.testing.assert_close(out[:1], reference(q[:1], cache.k[0], cache.v[0])[0], atol=5e-6, rtol=1e-5)


def test_single_requests_and_layouts():
    q, k, v = torch.randn(5, HEADS, D), torch.randn(11, KV_HEADS, D), torch.randn(11, KV_HEADS, D)
    mask = torch.rand(5, 11) < 0.6
    agree(flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True, return_lse=True), reference(q, k, v, causal=True))
    agree(
        flashinfer.single_prefill_with_kv_cache(q, k, v, custom_mask=mask, return_lse=True),
        reference(q, k, v, score=lambda s: s.masked_fill(~mask, -torch.inf)),
    )
    turned = k.transpose(0, 1), v.transpose(0, 1)
    out, lse = flashinfer.single_decode_with_kv_cache(q[0], *turned, kv_layout="HND", return_lse=True)
    agree((out[None], lse[None]), reference(q[:1], k, v))


def test_scales():
    q, k, v = torch.randn(5, HEADS, D), torch.randn(11, KV_HEADS, D), torch.randn(11, KV_HEADS, D)
    got = flashinfer.single_prefill_with_kv_cache(q, k / 4, v / 2, 0.5, 8.0, torch.tensor(2.0))
    torch.testing.assert_close(got.double(), reference(q, k, v)[0], atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_append(layout):
    cache = Cache(layout)
    before = cache.pages.clone()
    grown = torch.tensor(LENGTHS) + torch.tensor([2, 0, 0, 1, 3])  # these places exist already in the last pages
    starts = torch.tensor([0, 2, 2, 2, 3, 6])
    requests, positions = flashinfer.get_batch_indices_positions(starts, grown, 6)
    assert requests.tolist() == [0, 0, 3, 4, 4, 4] and positions.tolist() == [9, 10, 17, 1, 2, 3]
    k, v = torch.randn(2, 6, KV_HEADS, D)
    flashinfer.append_paged_kv_cache(k, v, requests, positions, cache.pages, *cache.lists()[1::-1], cache.last, layout)
    want = before if layout == "NHD" else before.transpose(2, 3)
    for row, (b, at) in enumerate(zip(requests.tolist(), positions.tolist())):
        page = cache.indices[cache.indptr[b] + at // PAGE]
        want[page, 0, at % PAGE], want[page, 1, at % PAGE] = k[row], v[row]
    got = cache.pages if layout == "NHD" else cache.pages.transpose(2, 3)
    torch.testing.assert_close(got, want, equal_nan=True, atol=0, rtol=0)
    with pytest.raises(ValueError):
        flashinfer.append_paged_kv_cache(k[:1], v[:1], requests[:1], positions[:1] + 99, cache.pages,
                                         *cache.lists()[1::-1], cache.last, layout)


def test_states_merge():
    q, k, v = torch.randn(4, HEADS, D), torch.randn(12, KV_HEADS, D), torch.randn(12, KV_HEADS, D)
    parts = [flashinfer.single_prefill_with_kv_cache(q, k[a:b], v[a:b], return_lse=True)
             for a, b in ((0, 5), (5, 12))]
    want = reference(q, k, v)
    agree(flashinfer.merge_state(*parts[0], *parts[1]), want)
    agree(flashinfer.merge_states(*(torch.stack(x, 1) for x in zip(*parts))), want)
    out, lse = (x.clone() for x in parts[0])
    taken = torch.tensor([True, False, True, True])
    flashinfer.merge_state_in_place(out, lse, *parts[1], mask=taken)
    assert torch.equal(out[1], parts[0][0][1]) and torch.equal(lse[1], parts[0][1][1])
    agree((out[taken], lse[taken]), (want[0][taken], want[1][:, taken]))
    empty = torch.zeros(1, 2, 3), torch.full((1, 2), -torch.inf)
    out, lse = flashinfer.merge_state(*empty, *empty)
    assert torch.equal(out, empty[0]) and torch.equal(lse, empty[1])


def test_refusals():
    cache, q = Cache(), torch.randn(len(LENGTHS), HEADS, D)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper()
    with pytest.raises(RuntimeError, match="before plan"):
        wrapper.run(q, cache.pages)
    with pytest.raises(ValueError, match="ROPE_LLAMA"):
        wrapper.plan(*cache.lists(), HEADS, KV_HEADS, D, PAGE, "ROPE_LLAMA")
    with pytest.raises(ValueError, match="kv_layout is 'DNH'"):
        flashinfer.BatchDecodeWithPagedKVCacheWrapper(None, "DNH")
    with pytest.raises(NotImplementedError, match="jit_args"):
        flashinfer.BatchDecodeWithPagedKVCacheWrapper(jit_args=["x"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'window'"):
        wrapper.plan(*cache.lists(), HEADS, KV_HEADS, D, PAGE, window=3)
    buffers = torch.empty(6), torch.empty(6), torch.empty(30, dtype=torch.int32)
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(None, "NHD", True, *buffers)
    with pytest.raises(NotImplementedError, match="custom_mask is given"):
        prefill.plan(torch.arange(6), *cache.lists(), HEADS, KV_HEADS, D, PAGE, custom_mask=torch.ones(31) > 0)
    wrapper.plan(*cache.lists(), HEADS, KV_HEADS, D, PAGE, block_tables=None)
    with pytest.raises(ValueError, match=r"paged_kv_cache is \[8, 2\]"):
        wrapper.run(q, torch.zeros(8, 2))
    assert heddle.torch.flashinfer is flashinfer


def test_older_names_of_run():
    """forward() has options of its own, as SGLang calls it: those of plan() do not count there."""
    cache, q = Cache(), torch.randn(len(LENGTHS), HEADS, D)
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(8), "NHD")
    decode.begin_forward(*cache.lists(), HEADS, KV_HEADS, D, PAGE, window_left=1, sm_scale=3.0)
    got = decode.forward_return_lse(q, cache.pages, sm_scale=0.5, logits_soft_cap=4.0, k_scale=None, v_scale=None)
    for b in range(len(LENGTHS)):
        want = reference(q[b : b + 1], cache.k[b], cache.v[b], softcap=4.0, scale=0.5)
        agree((got[0][b : b + 1], got[1][b : b + 1]), want)
    decode.end_forward()
    decode.reset_workspace_buffer(torch.empty(8), torch.empty(8))
    assert not decode.is_cuda_graph_enabled

    starts = torch.tensor([0, *torch.tensor(QUERIES).cumsum(0)], dtype=torch.int32)
    kv_starts = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32)
    q, k, v = torch.randn(sum(QUERIES), HEADS, D), torch.cat(cache.k), torch.cat(cache.v)
    pages, packed = flashinfer.BatchPrefillWithPagedKVCacheWrapper(), flashinfer.BatchPrefillWithRaggedKVCacheWrapper()
    pages.begin_forward(starts, *cache.lists(), HEADS, KV_HEADS, D, PAGE)
    packed.begin_forward(starts, kv_starts, HEADS, KV_HEADS, D)
    options = {"causal": True, "sm_scale": 0.5, "window_left": 3, "logits_soft_cap": 2.0}
    for wrapper, keys in ((pages, (cache.pages,)), (packed, (k, v))):
        out, lse = wrapper.forward_return_lse(q, *keys, **options)
        assert torch.equal(wrapper.forward(q, *keys, **options), out)
        full, full_lse = wrapper.run_return_lse(q, *keys)
        for b in range(len(LENGTHS)):
            rows = slice(starts[b], starts[b + 1])
            meant = {"causal": True, "scale": 0.5, "window": (3, 0), "softcap": 2.0}
            agree((out[rows], lse[rows]), reference(q[rows], cache.k[b], cache.v[b], **meant))
            agree((full[rows], full_lse[rows]), reference(q[rows], cache.k[b], cache.v[b], **meant))  # kept by forward()

    one = flashinfer.single_prefill_with_kv_cache_return_lse(q[:5], cache.k[0], cache.v[0], causal=True)
    agree(one, reference(q[:5], cache.k[0], cache.v[0], causal=True))
    with pytest.raises(RuntimeError, match="before plan"):
        flashinfer.BatchDecodeWithPagedKVCacheWrapper().forward(q, cache.pages)
