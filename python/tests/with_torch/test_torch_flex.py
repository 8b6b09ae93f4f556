"""flex_attention's arguments, results and errors beside torch's."""

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import heddle
from agreement import assert_agrees
from heddle.torch import AuxRequest, create_block_mask, flex_attention

flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True


def random(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=dtype, generator=generator)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 8), (1, 2, 1, 65, 16), (2, 3, 65, 1, 16), (1, 1, 129, 257, 96), (2, 1, 3, 5, 7)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_shapes_and_types(shape, dtype):
    batch, heads, q_len, kv_len, head_dim = shape
    q, k, v = (
        random(batch, heads, q_len, head_dim, dtype=dtype),
        *(random(batch, heads, kv_len, head_dim + i, dtype=dtype)[..., :head_dim] for i in (0, 1)),
    )
    assert_agrees(q, k, v, mask_mod=causal)
    assert_agrees(q, k, v, scale=0.3)


def test_value_of_another_width():
    assert_agrees(random(2, 2, 9, 16), random(2, 2, 12, 16), random(2, 2, 12, 24))


@pytest.mark.parametrize("heads", [(4, 2), (6, 2), (5, 1), (8, 8)])
def test_gqa(heads):
    q, k = random(2, heads[0], 9, 16), random(2, heads[1], 12, 16)
    slopes = random(heads[0])
    assert_agrees(q, k, k, lambda score, b, h, q_idx, kv_idx: score * slopes[h], causal, enable_gqa=True)


def test_no_tokens():
    assert flex_attention(random(0, 2, 4, 8), random(0, 2, 4, 8), random(0, 2, 4, 8)).shape == (0, 2, 4, 8)
    assert flex_attention(random(1, 2, 0, 8), random(1, 2, 4, 8), random(1, 2, 4, 8)).shape == (1, 2, 0, 8)
    out, aux = flex_attention(
        random(1, 2, 4, 8), random(1, 2, 0, 8), random(1, 2, 0, 8), return_aux=AuxRequest(lse=True)
    )
    assert torch.equal(out, torch.zeros(1, 2, 4, 8)) and torch.equal(aux.lse, torch.full((1, 2, 4), -torch.inf))


def test_layouts():
    """Inputs of any strides; the result has the order of the query's."""
    plain = random(2, 3, 10, 8)
    want = flex_attention(plain, plain, plain)
    layouts = {
        "bhsd": plain,
        "bshd": plain.transpose(1, 2).contiguous().transpose(1, 2),
        "sbhd": plain.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
        "fused": torch.cat([plain, plain], -1)[..., :8],
        "columns": plain.transpose(2, 3).contiguous().transpose(2, 3),
        "expanded": plain[:, :1].expand(2, 3, 10, 8),
    }
    for name, x in layouts.items():
        for k in layouts.values():
            got = flex_attention(x, k, k)
            torch.testing.assert_close(got, flex.flex_attention(x.contiguous(), k.contiguous(), k.contiguous()))
            assert got.stride(3) == 1, name
    out = flex_attention(layouts["bshd"], plain, plain)
    assert torch.equal(out, want) and out.transpose(1, 2).is_contiguous()
    out = flex_attention(layouts["sbhd"], plain, random(2, 3, 10, 12))
    assert out.permute(2, 0, 1, 3).is_contiguous()


def test_keys_of_batch_one():
    q, k = random(3, 2, 9, 8), random(1, 2, 12, 8)
    lengths = torch.tensor([1, 5, 12])
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: kv_idx < lengths[b], 3, None, 9, 12, "cpu")
    got = flex_attention(q, k, k, block_mask=mask)
    for i in range(3):
        torch.testing.assert_close(
            got[i], torch.nn.functional.scaled_dot_product_attention(q[i], k[0, :, : lengths[i]], k[0, :, : lengths[i]])
        )
    with pytest.raises(ValueError, match="same batch size"):
        flex_attention(q, k, k)


def test_keys_and_values_of_another_type():
    q, k, v = random(1, 2, 9, 16), random(1, 2, 12, 16), random(1, 2, 12, 16)
    got = flex_attention(q, k.bfloat16(), v.half())
    torch.testing.assert_close(got, flex_attention(q, k.bfloat16().float(), v.half().float()))
    got = flex_attention(q.bfloat16(), k.to(torch.float8_e4m3fn), v.to(torch.float8_e5m2))
    want = flex_attention(q.bfloat16(), k.to(torch.float8_e4m3fn).bfloat16(), v.to(torch.float8_e5m2).bfloat16())
    # bf16 throughout may go by AMX, where weights are rounded to bf16.
    torch.testing.assert_close(got, want, atol=2**-8, rtol=2**-6)


def test_results():
    q = random(1, 2, 9, 16)
    out, aux = flex_attention(q, q, q, return_aux=AuxRequest(lse=True))
    with pytest.warns(FutureWarning):
        from heddle.torch import _flex

        _flex._warned.clear()
        both = flex_attention(q, q, q, return_lse=True)
    assert torch.equal(both[0], out) and torch.equal(both[1], aux.lse) and aux.max_scores is None
    assert flex_attention(q, q, q, return_aux=AuxRequest())[1] == (None, None)
    with pytest.raises(ValueError, match="both return_lse and return_aux"):
        flex_attention(q, q, q, return_lse=True, return_aux=AuxRequest())


def test_max_scores():
    """torch computes them on GPUs alone."""
    q, k, v, bias = random(2, 4, 9, 16), random(2, 2, 12, 16), random(2, 2, 12, 16), random(4, 12)

    def score(score, b, h, q_idx, kv_idx):
        return score * 3 + bias[h, kv_idx]

    def mask(b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx) & (q_idx != 4)

    block = heddle.torch.create_block_mask(mask, None, None, 9, 12, "cpu")
    i, j = torch.arange(9)[:, None], torch.arange(12)
    scores = q @ k.repeat_interleave(2, 1).mT / 4 * 3 + bias[:, None]
    want = scores.masked_fill(~mask(0, 0, i, j), -torch.inf).amax(-1)
    for dtype in (torch.float32, torch.float64):
        given = [x.to(dtype) for x in (q, k, v)]
        for with_lse in (False, True):
            out, aux = flex_attention(*given, score, block, enable_gqa=True,
                                      return_aux=AuxRequest(lse=with_lse, max_scores=True))
            assert aux.max_scores.dtype == dtype and aux.max_scores[0, 0, 4] == -torch.inf
            torch.testing.assert_close(aux.max_scores, want.to(dtype), atol=2e-6, rtol=1e-6)
            assert (aux.lse is not None) == with_lse
            assert torch.equal(out, flex_attention(*given, score, block, enable_gqa=True))
    given[0].requires_grad_()
    out, aux = flex_attention(*given, score, block, enable_gqa=True, return_aux=AuxRequest(max_scores=True))
    assert out.requires_grad and not aux.max_scores.requires_grad
    torch.testing.assert_close(aux.max_scores, want.double(), atol=2e-6, rtol=1e-6)
    out.sum().backward()


def test_max_scores_beside_a_graph_break():
    """Without fullgraph the call runs beside the graphs."""
    torch.manual_seed(0)
    q = torch.randn(1, 2, 40, 16)
    want = flex_attention(q, q, q, return_aux=AuxRequest(max_scores=True))[1].max_scores

    @torch.compile(backend="eager")
    def attend(q):
        return flex_attention(q, q, q, return_aux=AuxRequest(max_scores=True, lse=True))[1].max_scores * 2

    torch.testing.assert_close(attend(q), 2 * want)


def test_max_scores_are_of_eager_calls():
    q = random(1, 2, 9, 16)

    def call(q):
        return flex_attention(q, q, q, return_aux=AuxRequest(max_scores=True))[1].max_scores

    with pytest.raises(Exception, match="max_scores are computed by eager calls alone"):
        torch.compile(call, backend="eager", fullgraph=True)(q)
    with pytest.raises(NotImplementedError, match="max_scores are computed by eager calls alone"):
        torch.vmap(call)(q[None])


def test_errors_are_torchs():
    q = random(1, 4, 9, 16)
    cases = [
        (ValueError, (q, random(1, 4, 9, 8), q), {}),
        (NotImplementedError, (q[0], q[0], q[0]), {}),
        (ValueError, (q, q[:, :2], q[:, :2]), {}),
        (ValueError, (q, random(1, 3, 9, 16), random(1, 3, 9, 16)), {"enable_gqa": True}),
        (ValueError, (q, q.expand(2, -1, -1, -1), q.expand(2, -1, -1, -1)), {}),
        (ValueError, (q, q.to("meta"), q), {}),
        (ValueError, (q, q, q), {"kernel_options": {"BACKEND": "NONE"}}),
        (RuntimeError, (q, q, q), {"kernel_options": {"BACKEND": "AUTO", "FORCE_USE_FLEX_ATTENTION": True}}),
        (AssertionError, (q, q, q), {"kernel_options": {"OUTPUT_MAX": True}}),
    ]
    for error, arguments, options in cases:
        for function in (flex_attention, flex.flex_attention):
            with pytest.raises(error):
                function(*arguments, **options)


def test_kernel_options_are_accepted():
    q = random(1, 1, 9, 16)
    options = {"BLOCK_M": 64, "fwd_num_warps": 8, "PRESCALE_QK": True, "BACKEND": "TRITON"}
    assert torch.equal(flex_attention(q, q, q, kernel_options=options), flex_attention(q, q, q))
    with pytest.warns(UserWarning, match="WARP_SPEED"):
        flex_attention(q, q, q, kernel_options={"WARP_SPEED": 9})


def test_autocast():
    q = random(1, 2, 9, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = flex_attention(q, q, q)
    assert out.dtype == torch.bfloat16 and torch.equal(out, flex_attention(*[q.bfloat16()] * 3))


def test_threads():
    from concurrent.futures import ThreadPoolExecutor

    tables = [torch.full((16,), float(i)) for i in range(8)]
    q = random(1, 2, 16, 8)

    def call(i):
        table, shift = tables[i], i / 8
        return flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score * shift + table[q_idx] * kv_idx)

    want = [call(i) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            assert all(torch.equal(x, y) for x, y in zip(pool.map(call, range(8)), want))


def test_what_a_cuda_graph_captures():
    """The path of a captured stream, on the CPU: a kept plan, and a workspace of torch's."""
    from heddle.torch import _eager
    from heddle.torch._call import Call

    q, table = random(1, 2, 16, 8), random(16)
    call = Call(q, q, q, score="score + table[kv_idx]", captures={"table": table}, with_lse=True)
    want, want_lse = _eager.run(call)
    plans = heddle.plan_cache_counts()["misses"]
    out, lse = torch.full_like(want, torch.nan), torch.full_like(want_lse, torch.nan)
    _eager.run_in_graph(call, out, lse, call.arguments())
    assert torch.equal(out, want) and torch.equal(lse, want_lse)
    assert heddle.plan_cache_counts()["misses"] == plans
    table += 1
    _eager.run_in_graph(call, out, lse, call.arguments())
    torch.testing.assert_close(lse, want_lse + 1)
    _eager._in_graphs.clear()


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.randn(1, 4, 5, 8).expand(3, 4, 5, 8),
        lambda: torch.randn(3, 1, 5, 8).expand(3, 4, 5, 8),
        lambda: torch.randn(1, 5, 4, 8).expand(3, 5, 4, 8).transpose(1, 2),
        lambda: torch.randn(1, 1, 1, 8).expand(3, 4, 5, 8),
    ],
    ids=["batch", "heads", "batch of rows", "all"],
)
@pytest.mark.parametrize("last", [8, 4])
def test_strides_for_expanded_queries(made, last):
    query, key, value = made(), torch.randn(3, 4, 6, 8), torch.randn(3, 4, 6, last)
    want = flex.flex_attention(query, key, value)
    got = heddle.torch.flex_attention(query, key, value)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)
