"""Under torch.compile, torch.export, vmap, checkpoint and fake tensors."""

import math

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from heddle.torch import BlockMask, _flex, create_block_mask, flex_attention, scaled_dot_product_attention, varlen_attn

generator = torch.Generator().manual_seed(3)
q, k, v = (torch.randn(2, 4, 33, 16, generator=generator) for _ in range(3))
slopes = torch.rand(4, generator=generator)
ids = torch.randint(0, 3, (2, 33), generator=generator).sort(-1).values


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture(params=["eager", "aot_eager", "inductor"])
def compiled(request):
    return lambda function, **options: torch.compile(function, backend=request.param, fullgraph=True, **options)


def alibi(score, b, h, q_idx, kv_idx):
    return score + slopes[h] * (kv_idx - q_idx)


FACTOR = 1.0


def times_factor(score, b, h, q_idx, kv_idx):
    return score * FACTOR


def documents(b, h, q_idx, kv_idx):
    return ids[b, q_idx] == ids[b, kv_idx]


def test_a_mod_from_outside(compiled):
    torch.testing.assert_close(compiled(flex_attention)(q, k, v, alibi), flex_attention(q, k, v, alibi))


def test_a_mod_made_inside(compiled):
    def model(q, k, v, slopes, window):
        doubled = slopes * 2

        def score(score, b, h, q_idx, kv_idx):
            return torch.where(q_idx - kv_idx <= window, score + doubled[h] * (kv_idx - q_idx), score)

        return flex_attention(q * 1.5, k, v, score) + 1

    fast = compiled(model)
    for window in (3, 5, 9):
        torch.testing.assert_close(fast(q, k, v, slopes, window), model(q, k, v, slopes, window))


NUMBER_MODS = {
    "operand": lambda c: lambda score, b, h, q_idx, kv_idx: c * torch.tanh(score / c) + 2**c,
    "where": lambda c: lambda score, b, h, q_idx, kv_idx: torch.where(q_idx - kv_idx < c, score, c),
    "maximum": lambda c: lambda score, b, h, q_idx, kv_idx: score * max(c, 2.0) * math.sqrt(c),
    "value": lambda c: lambda score, b, h, q_idx, kv_idx: torch.clamp(score, -1.0, c) * round(c) * math.exp(c),
    "branch": lambda c: lambda score, b, h, q_idx, kv_idx: score * 2 if c > 2 else score - c,
}


@pytest.mark.parametrize("make", NUMBER_MODS.values(), ids=NUMBER_MODS)
def test_a_float_of_a_closure_changes(compiled, make):
    def model(c):
        return flex_attention(q, k, v, make(c))

    fast = compiled(model)
    for c in (1.5, 2.5, 3.25):
        torch.testing.assert_close(fast(c), model(c))


def test_a_global_float_changes(compiled, monkeypatch):
    fast = compiled(lambda q: flex_attention(q, k, v, times_factor))
    for factor in (0.5, 1.5, 2.5):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        torch.testing.assert_close(fast(q), flex_attention(q, k, v, times_factor))


def test_a_float_of_a_module_changes(compiled):
    class Model(torch.nn.Module):
        def score(self, score, b, h, q_idx, kv_idx):
            return score * self.factor

        def forward(self, q):
            return flex_attention(q * self.factor, k, v, self.score)

    model = Model()
    fast = compiled(model)
    for model.factor in (0.5, 1.5, 2.5):
        torch.testing.assert_close(fast(q), model(q))


@pytest.mark.parametrize("create", [create_block_mask, flex.create_block_mask], ids=["heddle", "torch"])
def test_a_block_mask_from_outside(compiled, create):
    mask = create(documents, 2, None, 33, 33, "cpu", BLOCK_SIZE=16)
    got = compiled(flex_attention)(q, k, v, alibi, mask)
    torch.testing.assert_close(got, flex_attention(q, k, v, alibi, mask))


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def listed_masks():
    mask = create_block_mask(causal, None, None, 33, 33, "cpu", BLOCK_SIZE=16)
    sliced = mask[:1]
    sliced.mask_mod = causal
    return {
        "sliced": sliced,
        "from_kv_blocks": BlockMask.from_kv_blocks(
            mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices, 16, causal, (33, 33)
        ),
    }


@pytest.mark.parametrize("name", ["sliced", "from_kv_blocks"])
def test_a_block_mask_of_lists(compiled, name):
    mask = listed_masks()[name]
    got = compiled(lambda q: flex_attention(q, k, v, block_mask=mask))(q)
    torch.testing.assert_close(got, flex_attention(q, k, v, block_mask=mask))


def test_a_block_mask_cropped_inside(compiled):
    whole, mask = (create_block_mask(causal, None, None, n, n, "cpu", BLOCK_SIZE=16) for n in (64, 33))
    got = compiled(lambda q: flex_attention(q, k, v, block_mask=whole._adjust(33, 33)))(q)
    torch.testing.assert_close(got, flex_attention(q, k, v, block_mask=mask))


def test_a_block_mask_for_torchs_own_function(compiled):
    mask = create_block_mask(documents, 2, None, 33, 33, "cpu", BLOCK_SIZE=16)
    got = compiled(lambda q: flex.flex_attention(q, k, v, block_mask=mask))(q)
    torch.testing.assert_close(got, flex_attention(q, k, v, block_mask=mask))


def test_a_block_mask_made_inside(compiled):
    def model(q, ids, window):
        def near(b, h, q_idx, kv_idx):
            return (ids[b, q_idx] == ids[b, kv_idx]) & (q_idx - kv_idx < window)

        return flex_attention(q, k, v, alibi, create_block_mask(near, 2, None, 33, 33, "cpu"))

    fast = compiled(model)
    for others, window in ((ids, 5), (ids.flip(1), 9), (ids, 12)):
        torch.testing.assert_close(fast(q, others, window), model(q, others, window))


def test_a_block_mask_that_leaves_the_graph(compiled):
    mask = compiled(lambda: create_block_mask(documents, 2, None, 33, 33, "cpu", BLOCK_SIZE=16))()
    want = create_block_mask(documents, 2, None, 33, 33, "cpu", BLOCK_SIZE=16)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=mask), flex_attention(q, k, v, block_mask=want))
    assert mask.kv_num_blocks.equal(want.kv_num_blocks)


def test_sdpa(compiled):
    def model(q, k, v, mask):
        return scaled_dot_product_attention(q, k, v, is_causal=True) + scaled_dot_product_attention(q, k, v, mask)

    mask = torch.randn(33, 33) > 0
    torch.testing.assert_close(compiled(model)(q, k, v, mask), model(q, k, v, mask))


def test_varlen(compiled):
    starts = torch.tensor([0, 10, 33], dtype=torch.int32)
    packed = [x[0].transpose(0, 1) for x in (q, k, v)]

    def model(q, k, v):
        return varlen_attn(q, k, v, starts, starts, 23, 23, window_size=(-1, 0))

    torch.testing.assert_close(compiled(model)(*packed), model(*packed))


def test_another_length_compiles_once_more_at_most():
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    fast = torch.compile(lambda q, k, v: flex_attention(q, k, v, alibi), backend=counter, fullgraph=True)
    for length in (16, 17, 24, 40, 56):
        x = torch.randn(1, 4, length, 16)
        torch.testing.assert_close(fast(x, x, x), flex_attention(x, x, x, alibi))
    assert counter.frame_count <= 2


def test_extents_that_are_kept_open():
    """A mask says 2 where Dynamo keeps the query's batch open."""
    def model(q, ids, bias):
        length = q.shape[2]
        mask = create_block_mask(lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx], 2, 4, length, length, "cpu")
        return flex_attention(q, q, q, block_mask=mask) + scaled_dot_product_attention(q, q, q, attn_mask=bias)

    fast = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (16, 24, 40):
        q = torch.randn(2, 4, length, 16, generator=generator)
        ids, bias = torch.arange(length).expand(2, length) // 7, torch.randn(2, 1, length, length)
        torch.testing.assert_close(fast(q, ids, bias), model(q, ids, bias))


def test_export():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return scaled_dot_product_attention(q, k, v, is_causal=True) * 2

    program = torch.export.export(Model(), (q, k, v))
    assert any("heddle.forward" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(q, k, v), Model()(q, k, v))


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_mods(strict):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("slopes", slopes)

        def forward(self, q, k, v, ids):
            def score(score, b, h, q_idx, kv_idx):
                return score * 2 + self.slopes[h] * (kv_idx - q_idx)

            def mask(b, h, q_idx, kv_idx):
                return ids[b, q_idx] == ids[b, kv_idx]

            return flex_attention(q, k, v, score, create_block_mask(mask, 2, None, 33, 33, "cpu"))

    program = torch.export.export(Model(), (q, k, v, ids), strict=strict)
    assert [str(node.target) for node in program.graph.nodes].count("heddle.forward.default") == 1
    others = ids.flip(1)
    torch.testing.assert_close(program.module()(q, k, v, others), Model()(q, k, v, others))


def test_the_operator_is_sound():
    """torch's own checks: schema, fake results, tracing."""
    from heddle.torch._call import Call
    from heddle.torch._operands import operands

    call = Call(q, k, v, scale=0.5, score="score + slopes[h] * factor", mask="kv_idx <= q_idx + shift",
                captures={"slopes": slopes}, params={"factor": 0.5, "shift": 2})
    strided = q.transpose(1, 2).contiguous().transpose(1, 2)
    for query in (q, strided):
        torch.library.opcheck(
            torch.ops.heddle.forward.default,
            (query, k, v, *operands(call, 1)),
            test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
        )


@pytest.mark.parametrize("dims", [(0, 0, 0), (1, None, 0), (None, 2, 2)])
def test_vmap(dims):
    stacked = [x if dim is None else torch.stack([x, x + 1, x - 1], dim) for x, dim in zip((q, k, v), dims)]
    bias = torch.randn(2, 33)

    def per_batch(score, b, h, q_idx, kv_idx):
        return score + bias[b, kv_idx]

    for score in (alibi, per_batch):
        got = torch.vmap(lambda q, k, v: flex_attention(q, k, v, score), in_dims=dims)(*stacked)
        want = [
            flex_attention(*(x if dim is None else x.select(dim, i) for x, dim in zip(stacked, dims)), score)
            for i in range(3)
        ]
        torch.testing.assert_close(got, torch.stack(want))


def test_vmap_over_keys_that_the_batch_shares():
    keys = torch.randn(3, 1, 4, 33, 16)
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 33, 33, "cpu")
    got = torch.vmap(lambda x: flex_attention(q, x, x, block_mask=mask))(keys)
    torch.testing.assert_close(got, torch.stack([flex_attention(q, x, x, block_mask=mask) for x in keys]))


def test_vmap_over_a_capture():
    tables = torch.randn(3, 33)

    def call(table):
        return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + table[kv_idx])

    torch.testing.assert_close(torch.vmap(call)(tables), torch.stack([call(table) for table in tables]))


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        out = flex_attention(*(mode.from_tensor(x) for x in (q, k, v)))
    assert out.shape == q.shape and type(out).__name__ == "FakeTensor"


def test_checkpoint():
    from torch.utils.checkpoint import checkpoint

    with torch.no_grad():
        got = checkpoint(flex_attention, q, k, v, alibi, use_reentrant=False)
    torch.testing.assert_close(got, flex_attention(q, k, v, alibi))


def test_what_warns_eagerly_compiles(no_grad):
    """Dynamo cannot trace a warning."""
    q = torch.randn(1, 2, 32, 16)

    def call(q):
        mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 32, 32, "cpu", _compile=True)
        return flex_attention(q, q, q, block_mask=mask, return_lse=True, kernel_options={"unheard_of": 1})

    _flex._warned.clear()
    out, lse = torch.compile(call, fullgraph=True, backend="eager")(q)
    assert lse.shape == (1, 2, 32) and not _flex._warned
    with pytest.warns(Warning) as warned:
        want = call(q)
    assert [one.category for one in warned] == [DeprecationWarning, FutureWarning, UserWarning]
    torch.testing.assert_close((out, lse), want)


def test_blocks_of_pages_that_are_not_assigned():
    """-1 in lists, as eager calls take them."""
    q = torch.randn(1, 2, 256, 8)
    counts, indices = (torch.tensor(x, dtype=torch.int32) for x in ([[[2, 2]]], [[[[0, -1], [-1, 1]]]]))
    mask = flex.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=128, mask_mod=lambda b, h, i, j: i >= j)
    torch._dynamo.reset()
    attend = torch.compile(lambda q: flex_attention(q, q, q, block_mask=mask), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(attend(q), flex_attention(q, q, q, block_mask=mask))
