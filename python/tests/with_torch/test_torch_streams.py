"""Streams, graphs, threads and memory of a GPU. HEDDLE_TEST_DEVICE=cuda runs them."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import heddle
from agreement import DEVICE
from heddle.torch import create_block_mask, flex_attention, scaled_dot_product_attention, serving

pytestmark = [pytest.mark.skipif(DEVICE != "cuda", reason="HEDDLE_TEST_DEVICE is not cuda"),
              pytest.mark.usefixtures("no_grad")]
GENERATOR = torch.Generator().manual_seed(31)
CLOCKS = 400_000_000  # that a stream is kept busy for: 0.2 s


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield
    torch.cuda.synchronize()


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=GENERATOR).to(DEVICE, dtype)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def inputs():
    return [random(2, 4, 300, 64) for _ in range(3)]


def calls():
    """Calls that run often, by name: functions of (q, k, v)."""
    bias, limit = random(300, dtype=torch.float32), torch.tensor([100], device=DEVICE)
    lazy = create_block_mask(causal, None, None, 300, 300, DEVICE)
    few = create_block_mask(lambda b, h, q_idx, kv_idx: kv_idx < limit[0], None, None, 300, 300, DEVICE)
    starts = torch.tensor([0, 100, 300], dtype=torch.int32, device=DEVICE)

    def packed(q, k, v):
        rows = [x[0].transpose(0, 1) for x in (q, k, v)]
        return serving.varlen_func(*rows, starts, starts, 200, 200, causal=True)

    return {
        "plain": flex_attention,
        "score": lambda q, k, v: flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + bias[kv_idx]),
        "block mask": lambda q, k, v: flex_attention(q, k, v, block_mask=lazy),
        "block mask of a tensor": lambda q, k, v: flex_attention(q, k, v, block_mask=few),
        "sdpa": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
        "dense mask": lambda q, k, v: scaled_dot_product_attention(q, k, v, bias[None].expand(300, 300).bfloat16()),
        "packed": packed,
    }


NAMES = ["plain", "score", "block mask", "block mask of a tensor", "sdpa", "dense mask", "packed"]


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_the_current_stream_and_waits_for_nothing(name):
    call, (q, k, v) = calls()[name], inputs()
    zeros = [torch.zeros_like(x) for x in (q, k, v)]
    want = call(q, k, v).clone()
    call(*zeros)
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CLOCKS)
        for x, y in zip(zeros, (q, k, v)):
            x.copy_(y)  # a call on another stream, or one that did not wait for the stream, reads zeros
        got = call(*zeros)
        done.record()
    assert not done.query(), "the call waited for the stream"
    stream.synchronize()
    assert torch.equal(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_graphs(name):
    call, given = calls()[name], inputs()
    call(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(*given)
    for _ in range(3):
        for x in given:
            x.copy_(random(*x.shape))
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, call(*given))


def test_graphs_read_captures_and_lengths_again():
    q, k, v = inputs()
    bias, lengths = random(300, dtype=torch.float32), torch.tensor([300, 200], dtype=torch.int32, device=DEVICE)

    def call():
        rows = [x.transpose(1, 2) for x in (q, k, v)]
        return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + bias[kv_idx]), serving.with_kvcache(
            rows[0][:, :1], *rows[1:], cache_seqlens=lengths)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = call()
    for length in (1, 77, 300):
        bias.copy_(random(300, dtype=torch.float32))
        lengths.fill_(length)
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(outs, call()))


def test_replays_draw_other_dropouts():
    q, k, _ = inputs()
    ones = torch.ones_like(q)

    def call():
        return scaled_dot_product_attention(q, k, ones, dropout_p=0.3)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    drawn = []
    for _ in range(3):
        graph.replay()
        drawn.append(out.clone())
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[1], drawn[2])
    assert all(abs(x.float().mean() - 1) < 0.1 for x in drawn)


def test_a_graph_before_any_call_says_what_to_do():
    q = random(1, 2, 333, 64)
    graph = torch.cuda.CUDAGraph()
    try:
        with pytest.raises(Exception, match="captur"):
            with torch.cuda.graph(graph):
                flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score * 0.123)
    finally:
        torch.cuda.synchronize()
    assert flex_attention(q, q, q).isfinite().all()


def test_threads_with_streams():
    tables = [torch.full((300,), float(i), device=DEVICE) for i in range(8)]
    q, k, v = inputs()
    mask = create_block_mask(causal, None, None, 300, 300, DEVICE)

    def call(i):
        table, shift = tables[i], i / 8
        with torch.cuda.stream(torch.cuda.Stream()):
            out = flex_attention(
                q, k, v, lambda score, b, h, q_idx, kv_idx: score * shift + table[q_idx] * kv_idx * 0.01, mask)
            torch.cuda.current_stream().synchronize()
        return out

    torch.cuda.synchronize()
    want = [call(i) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            assert all(torch.equal(x, y) for x, y in zip(pool.map(call, range(8)), want))


def test_memory_stays_flat():
    made, given = calls(), inputs()
    for call in made.values():
        call(*given)
    gc.collect()
    torch.cuda.synchronize()
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(300):
        for call in made.values():
            call(*given)
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    assert free - torch.cuda.mem_get_info()[0] <= 32 << 20


def test_block_masks_are_bounded_by_their_result():
    length = 65536
    document = torch.arange(length, device=DEVICE) // 4096

    def documents(b, h, q_idx, kv_idx):
        return (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    mask = create_block_mask(documents, None, None, length, length, DEVICE)
    lists = [getattr(mask, name) for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")]
    size = sum(x.numel() * x.element_size() for x in lists)
    assert torch.cuda.max_memory_allocated() - before <= 8 * size


def test_repeated_calls_take_no_walk(walks):
    made, given = calls(), inputs()
    for name in ("plain", "score", "block mask", "sdpa"):
        for _ in range(2):
            made[name](*given)
        walks.mods = walks.calls = 0
        made[name](*given)
        assert (walks.mods, walks.calls) == (0, 0), name


@pytest.mark.parametrize("pages", [0, 16])
@pytest.mark.parametrize("length", [100, 1000])
def test_old_keys_are_read_early(length, pages):
    """Each call's o is the last key of the next call, which begins before that key is written: by the promise of
    fresh_tokens it reads the others at once, and waits for this one."""
    layers, rows = 40, -(-length // 16) * 16
    q, last = random(2, 4, 1, 128), torch.arange(2 * rows // 16, dtype=torch.int32, device=DEVICE)
    named = {"kv_lengths": torch.tensor([length, length - 1], dtype=torch.int32, device=DEVICE), "max_kv_len": rows}
    if pages:
        named["page_table"] = last.reshape(2, -1)
    k, v = (random(layers + 1, 2, rows, 4, 128) for _ in range(2))
    results = []
    for promise in ({}, {"fresh_tokens": 1}):
        keys = k.clone()

        def caches(layer):
            both = keys[layer], v[layer]
            return [x.reshape(-1, pages or rows, 4, 128).transpose(1, 2) for x in both]

        def out(layer):  # the row of the first sequence's last key, and of the second's
            return torch.as_strided(keys[layer + 1], (2, 4, 1, 128), (rows * 512 - 512, 128, 512, 1),
                                    keys[layer + 1].storage_offset() + (length - 1) * 512)

        plan = heddle.AttentionPlan(q, *caches(0), out=out(0), **named, **promise)
        assert ("early true" in plan.explain()) == bool(promise)
        workspace = torch.empty(max(plan.workspace_bytes, 1), dtype=torch.uint8, device=DEVICE)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        for _ in range(10):
            for layer in range(layers):
                plan.run(q, *caches(layer), out=out(layer), workspace=workspace, stream=stream.cuda_stream)
        stream.synchronize()
        results.append(keys)
    assert torch.equal(*results)
