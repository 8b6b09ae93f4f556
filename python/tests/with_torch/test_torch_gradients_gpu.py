"""Gradients where HEDDLE_TEST_DEVICE says, in half precision and in f64: of q, k, v, lse and captures; what a GPU refuses.

Beside f64 and torch's own operations in the same type, of which twice the error is allowed.
"""

import pytest
import torch

import heddle.torch
from agreement import DEVICE
from gradient_reference import dense, gradients
from heddle.torch import AuxRequest, create_block_mask, flex_attention, scaled_dot_product_attention, serving

GENERATOR = torch.Generator().manual_seed(41)
on_a_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="HEDDLE_TEST_DEVICE is not cuda")


@pytest.fixture(autouse=True)
def where():
    """The reference's own indices are made here."""
    torch._dynamo.reset()
    with torch.device(DEVICE):
        yield


def random(*shape, dtype=torch.bfloat16, requires_grad=True):
    return torch.randn(*shape, generator=GENERATOR, device="cpu").to(DEVICE, dtype).requires_grad_(requires_grad)


slopes = random(16, dtype=torch.float32, requires_grad=False)
table = random(16, 600, dtype=torch.float32, requires_grad=False)
ids = torch.randint(0, 4, (3, 600), generator=GENERATOR).sort(-1).values.to(DEVICE)


def alibi(score, b, h, q_idx, kv_idx):
    return score + slopes[h] * (kv_idx - q_idx) * 0.1


SCORES = {
    "plain": None,
    "alibi": alibi,
    "softcap": lambda score, b, h, q_idx, kv_idx: 5.0 * torch.tanh(score / 5.0),
    "bias of keys": lambda score, b, h, q_idx, kv_idx: score + table[h, kv_idx],
    "temperature": lambda score, b, h, q_idx, kv_idx: score * (1 + 0.1 * table[h, q_idx]),
    "squares": lambda score, b, h, q_idx, kv_idx: score + 0.05 * score * score,
}
MASKS = {
    "everything": None,
    "causal": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx,
    "documents": lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx],
    "window": lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx <= 70),
    "empty rows": lambda b, h, q_idx, kv_idx: (q_idx % 3 != 0) & (kv_idx <= q_idx),
}


def assert_close(got, want, plain, names=("query", "key", "value")):
    for name, x, wanted, plains in zip(names, got, want, plain, strict=True):
        assert x.shape == wanted.shape, name
        largest = max(1.0, wanted.abs().max().item())
        allowed = 2 * (plains.double() - wanted).abs().max() + 4 * torch.finfo(got[0].dtype).eps * largest
        error = (x.double() - wanted).abs().max()
        assert error <= allowed, f"{name}: {error} > {allowed}, of {largest}"


def assert_gradients(given, score=None, mask=None, with_lse=False, batch=None, **options):
    q, k, v = given
    block = None if mask is None else create_block_mask(mask, batch, None, q.shape[2], k.shape[2], DEVICE)
    exact = [x.detach().double().requires_grad_() for x in given]
    same = [x.detach().requires_grad_() for x in given]
    out, aux = flex_attention(q, k, v, score, block, return_aux=AuxRequest(lse=True), **options)
    incoming = [torch.randn(x.shape, generator=GENERATOR, device="cpu").to(DEVICE, x.dtype) for x in (out, aux.lse)]
    count = 2 if with_lse else 1
    got = gradients([out, aux.lse][:count], given, incoming[:count])
    assert [x.dtype for x in got] == [x.dtype for x in given]
    scale = options.get("scale")
    want, plain = (gradients(dense(*tensors, score, mask, scale)[:count], tensors,
                             [x.to(tensors[0].dtype) for x in incoming[:count]]) for tensors in (exact, same))
    assert_close(got, want, plain)
    return got


def qkv(batch=2, heads=4, kv_heads=None, q_len=200, kv_len=None, dim=64, v_dim=None, dtype=torch.bfloat16):
    kv_heads, kv_len = kv_heads or heads, kv_len or q_len
    return [random(batch, heads, q_len, dim, dtype=dtype), random(batch, kv_heads, kv_len, dim, dtype=dtype),
            random(batch, kv_heads, kv_len, v_dim or dim, dtype=dtype)]


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", ["everything", "causal"])
def test_plain(dim, dtype, mask):
    assert_gradients(qkv(q_len=257, dim=dim, dtype=dtype), mask=MASKS[mask])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", MASKS)
def test_mods(score, mask):
    assert_gradients(qkv(q_len=150), SCORES[score], MASKS[mask], batch=2)


wide_slopes, wide_table = slopes.double(), table.double()  # else torch computes parts of the mods in f32
WIDE_SCORES = {
    "plain": None,
    "alibi": lambda score, b, h, q_idx, kv_idx: score + wide_slopes[h] * (kv_idx - q_idx) * 0.1,
    "softcap": SCORES["softcap"],
    "temperature": lambda score, b, h, q_idx, kv_idx: score * (1 + 0.1 * wide_table[h, q_idx]),
    "functions": lambda score, b, h, q_idx, kv_idx: (
        torch.erf(score) + torch.sigmoid(wide_table[h, kv_idx]) * torch.log1p(torch.exp(0.1 * score)) + torch.sin(score)),
}


@pytest.mark.parametrize("dim", [40, 128])
@pytest.mark.parametrize("score", WIDE_SCORES)
@pytest.mark.parametrize("mask", ["everything", "documents"])
def test_f64(score, mask, dim):
    """All of it is computed in f64."""
    q, k, v = given = qkv(heads=4, kv_heads=2, q_len=130, kv_len=150, dim=dim, dtype=torch.float64)
    block = None if mask == "everything" else create_block_mask(MASKS[mask], 2, None, 130, 150, DEVICE)
    out, aux = flex_attention(q, k, v, WIDE_SCORES[score], block, return_aux=AuxRequest(lse=True), enable_gqa=True)
    assert out.dtype == aux.lse.dtype == torch.float64
    incoming = [torch.randn(x.shape, generator=GENERATOR, device="cpu").to(DEVICE, x.dtype) for x in (out, aux.lse)]
    want = dense(*given, WIDE_SCORES[score], MASKS[mask])
    for got, wanted in zip((out, aux.lse), want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    for got, wanted in zip(gradients([out, aux.lse], given, incoming), gradients(want, given, incoming), strict=True):
        assert (got - wanted).abs().max() <= 1e-11 * max(1.0, wanted.abs().max().item())


def test_gradcheck_of_all_inputs():
    """torch's own check by differences, of q, k, v, a bias of keys and a factor."""
    q, k, v = qkv(batch=2, heads=2, q_len=5, kv_len=7, dim=8, dtype=torch.float64)
    bias, factor = random(2, 7, dtype=torch.float64), random(2, dtype=torch.float64)

    def attend(q, k, v, bias, factor):
        def score(score, b, h, q_idx, kv_idx):
            return torch.tanh(score * factor[h]) + bias[h, kv_idx] * torch.exp(-0.1 * (q_idx - kv_idx) ** 2)

        out, aux = flex_attention(q, k, v, score, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    # Sums over captures are added in no fixed order.
    assert torch.autograd.gradcheck(attend, (q, k, v, bias, factor), nondet_tol=1e-12)


def test_gradcheck_of_scaled_dot_product_attention():
    given = qkv(batch=1, heads=2, q_len=6, kv_len=6, dim=8, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *x: scaled_dot_product_attention(*x, is_causal=True), given)


SHAPES = {
    "groups": dict(heads=8, kv_heads=2), "groups of 3": dict(heads=6, kv_heads=2, dim=128),
    "more keys": dict(q_len=70, kv_len=500), "more queries": dict(q_len=500, kv_len=70),
    "one query": dict(q_len=1, kv_len=300), "one key": dict(q_len=100, kv_len=1), "long": dict(q_len=600, batch=1),
    "head dim 256": dict(dim=256), "head dims 192 and 128": dict(dim=192, v_dim=128),
    "head dim 80": dict(dim=80), "head dim 40": dict(dim=40), "wider keys": dict(dim=128, v_dim=64),
    "wider values": dict(dim=64, v_dim=128), "one row": dict(batch=1, heads=1, q_len=1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    given = qkv(**SHAPES[name])
    causal = None if given[0].shape[2] == 1 else MASKS["causal"]
    assert_gradients(given, alibi, causal, enable_gqa=given[0].shape[1] != given[1].shape[1], scale=0.11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mask", ["causal", "documents"])
def test_keys_and_values_that_serve_all_sequences(mask, dtype):
    """Their gradient is the sum over the sequences."""
    q, k, v = qkv(batch=3, heads=8, kv_heads=2, dtype=dtype)
    k, v = (x.detach()[:1].contiguous().requires_grad_() for x in (k, v))
    assert_gradients([q, k, v], alibi, MASKS[mask], with_lse=True, batch=3, enable_gqa=True)


def test_keys_alone_that_serve_all_sequences():
    q, k, v = qkv(batch=3)
    k, v = k.detach()[:1].requires_grad_(), v.detach()[:1]
    mask = create_block_mask(MASKS["causal"], None, None, 200, 200, DEVICE)
    got = torch.autograd.grad(flex_attention(q, k, v, block_mask=mask).float().square().sum(), k)[0]
    each = k.detach().repeat(3, 1, 1, 1).requires_grad_()
    out = flex_attention(q, each, v.repeat(3, 1, 1, 1), block_mask=mask)
    want = torch.autograd.grad(out.float().square().sum(), each)[0].float().sum(0, keepdim=True)
    assert got.shape == k.shape and got.dtype == k.dtype
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2 * want.abs().max().item())


@pytest.mark.parametrize("dim", [64, 128])
def test_lse(dim):
    assert_gradients(qkv(dim=dim), alibi, MASKS["documents"], with_lse=True, batch=2)


def test_layouts():
    packed = random(2, 200, 3, 4, 64)
    q, k, v = (x.transpose(1, 2) for x in packed.unbind(2))
    flex_attention(q, k, v, alibi)[..., :3].float().sum().backward()
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    same = [x.detach().requires_grad_() for x in (q, k, v)]
    want, plain = (torch.autograd.grad(dense(*x, alibi)[0][..., :3].sum(), x) for x in (leaves, same))
    assert_close([x.transpose(1, 2) for x in packed.grad.unbind(2)], want, plain)


def test_torchs_own_block_masks():
    from torch.nn.attention import flex_attention as flex

    given = qkv(q_len=300)
    mask = flex.create_block_mask(MASKS["documents"], 2, None, 300, 300, DEVICE)
    ours = create_block_mask(MASKS["documents"], 2, None, 300, 300, DEVICE)
    got, want = (torch.autograd.grad(flex_attention(*given, alibi, x).float().square().sum(), given)
                 for x in (mask, ours))
    for x, y in zip(got, want):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)


SDPA = {"plain": {}, "causal": {"is_causal": True}, "scale": {"scale": 0.3}, "bool": {"attn_mask": True},
        "bias": {"attn_mask": False}}


@pytest.mark.parametrize("name", SDPA)
def test_sdpa(name):
    given, options = qkv(q_len=130, kv_len=170), dict(SDPA[name])
    if "attn_mask" in options:
        mask = random(130, 170, requires_grad=False)
        options["attn_mask"] = mask > -0.5 if options["attn_mask"] else mask
    torchs = torch.nn.functional.scaled_dot_product_attention
    exact, same = ([x.detach().to(kind).requires_grad_() for x in given] for kind in (torch.float64, torch.bfloat16))
    out = scaled_dot_product_attention(*given, **options)
    incoming = random(*out.shape, requires_grad=False)
    got = torch.autograd.grad(out, given, incoming)
    wide = {key: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for key, x in options.items()}
    assert_close(got, torch.autograd.grad(torchs(*exact, **wide), exact, incoming.double()),
                 torch.autograd.grad(torchs(*same, **options), same, incoming))


def test_dropout_draws_the_forwards_bits_again():
    q, k, _ = (x.detach() for x in qkv(batch=1, heads=2, q_len=64))
    eye = torch.eye(64, dtype=torch.bfloat16).expand(1, 2, 64, 64).contiguous().requires_grad_()
    out = scaled_dot_product_attention(q, k, eye, dropout_p=0.4)  # o of v = 1 is P w itself
    assert 0.3 < (out == 0).double().mean() < 0.5
    (got,) = torch.autograd.grad(out.float().sum(), eye)
    want = out.detach().double().sum(-2)[..., None].expand_as(eye)
    assert (got.double() - want).abs().max() <= 2e-2 * want.abs().max()


def test_a_backward_waits_for_nothing_and_repeats_in_graphs():
    if DEVICE == "cpu":
        pytest.skip("HEDDLE_TEST_DEVICE is not cuda")
    given = [x.detach().requires_grad_() for x in qkv(q_len=300)]
    mask = create_block_mask(MASKS["causal"], None, None, 300, 300, DEVICE)

    def step():
        out = flex_attention(*given, alibi, mask)
        return torch.autograd.grad(out, given, out.detach())

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
        done = torch.cuda.Event()
        torch.cuda._sleep(2_000_000_000)
        step()
        done.record()
        assert not done.query(), "forward or backward waited for the stream"
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    for _ in range(3):
        with torch.no_grad():
            for x in given:
                x.copy_(random(*x.shape, requires_grad=False))
        graph.replay()
        torch.cuda.synchronize()
        for x, y in zip(made, step()):
            torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)  # dq's sums come in any order


def test_compiled():
    given = qkv()

    def model(q, k, v):
        def score(score, b, h, q_idx, kv_idx):
            return score + slopes[h] * (kv_idx - q_idx) * 0.1

        return flex_attention(q * 1.5, k, v, score, create_block_mask(MASKS["documents"], 2, None, 200, 200, DEVICE))

    got, want = (torch.autograd.grad(call(*given).float().square().sum(), given)
                 for call in (torch.compile(model, fullgraph=True), model))
    for x, y in zip(got, want):
        torch.testing.assert_close(x, y, rtol=3e-2, atol=3e-2)


def test_compiled_take_over():
    """torch's functions, compiled whole, with gradients."""
    given, seen = qkv(), []

    def model(q, k, v):
        out = torch.nn.attention.flex_attention.flex_attention(q, k, v, alibi)
        return torch.nn.functional.scaled_dot_product_attention(out, k, v, is_causal=True)

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    with heddle.torch.enabled():
        got, want = (torch.autograd.grad(call(*given).float().square().sum(), given)
                     for call in (torch.compile(model, fullgraph=True, backend=backend), model))
    assert "heddle" in " ".join(seen) and "scaled_dot_product_attention" not in " ".join(seen), seen
    for x, y in zip(got, want):
        torch.testing.assert_close(x, y, rtol=3e-2, atol=3e-2)


def test_autocast_and_checkpoint():
    from torch.utils.checkpoint import checkpoint

    given = [x.detach().float().requires_grad_() for x in qkv()]
    with torch.autocast(DEVICE, torch.bfloat16):
        out = flex_attention(*given, alibi)
        again = checkpoint(flex_attention, *given, alibi, use_reentrant=False)
    got, want = (torch.autograd.grad(x.float().square().sum(), given) for x in (again, out))
    for x, y in zip(got, want):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)


def test_a_model_learns_as_with_torchs():
    """A layer of attention learns to copy the token two before: losses beside those of torch's own operations."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.positions = torch.nn.Embedding(32, 128), torch.nn.Embedding(64, 128)
            self.qkv, self.head = torch.nn.Linear(128, 384), torch.nn.Linear(128, 32)

        def forward(self, tokens, attend):
            x = self.embed(tokens) + self.positions.weight
            q, k, v = self.qkv(x).bfloat16().view(*tokens.shape, 3, 2, 64).permute(2, 0, 3, 1, 4)
            out = attend(q, k, v, is_causal=True)
            return self.head(x + out.transpose(1, 2).flatten(2).float())

    losses = {}
    for attend in (scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention):
        torch.manual_seed(7)
        model, losses[attend] = Layer().to(DEVICE), []
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        for _ in range(40):
            tokens = torch.randint(0, 32, (16, 64))
            logits = model(tokens, attend)[:, 2:]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, :-2].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[attend].append(loss.item())
    ours, torchs = losses.values()
    assert torchs[-1] < 0.9 * torchs[0] and max(abs(x - y) for x, y in zip(ours, torchs)) < 0.05


# --- refused on a GPU ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim, dtype", [(64, torch.bfloat16), (128, torch.bfloat16), (256, torch.bfloat16),
                                        (64, torch.float32)])
@pytest.mark.parametrize("kind", ["of a head", "of a key", "of a query", "of a distance"])
def test_gradients_of_captures(dim, dtype, kind):
    given = [*qkv(q_len=150, dim=dim, dtype=dtype), random(4, 300, dtype=torch.float32)]

    def score_of(x):
        return {"of a head": lambda score, b, h, q_idx, kv_idx: score + x[h, 0] * (kv_idx - q_idx) * 0.1,
                "of a key": lambda score, b, h, q_idx, kv_idx: score * (1 + 0.1 * x[h, kv_idx]),
                "of a query": lambda score, b, h, q_idx, kv_idx: score * (1 + 0.1 * x[h, q_idx]),
                "of a distance": lambda score, b, h, q_idx, kv_idx: score + x[h, kv_idx - q_idx + 150]}[kind]

    out = flex_attention(*given[:3], score_of(given[3]))
    incoming = random(*out.shape, dtype=dtype, requires_grad=False)
    got = gradients([out], given, [incoming])
    exact = [x.detach().double().requires_grad_() for x in given]
    same = [x.detach().requires_grad_() for x in given]
    want, plain = (gradients(dense(*x[:3], score_of(x[3]), None, None)[:1], x, [incoming.to(x[0].dtype)])
                   for x in (exact, same))
    # sum(d_out * out) of a row is of the out that was stored: what its rounding changes adds up in such gradients.
    wide, lse = dense(*exact[:3], score_of(exact[3]), None, None)
    rounding = ((wide.to(out.dtype) - wide).detach() * incoming).sum(-1)
    stored = gradients([lse], exact, [rounding])
    want = [x - y for x, y in zip(want, stored)]
    assert_close(got, want, plain, ("query", "key", "value", "capture"))


@on_a_gpu
@pytest.mark.parametrize("dim, dtype", [(64, torch.bfloat16), (256, torch.bfloat16), (64, torch.float32)])
def test_ordered_gradients_of_captures(dim, dtype):
    given = [*qkv(q_len=150, dim=dim, dtype=dtype), random(4, 10, dtype=torch.float32)]
    buckets = given[3]

    def run():
        out = flex_attention(*given[:3], lambda score, b, h, q_idx, kv_idx: score + buckets[h, (q_idx * kv_idx) % 10])
        return gradients([out], given, [torch.ones_like(out)])

    any_order = run()[3]
    torch.use_deterministic_algorithms(True)
    try:
        first, second = run()[3], run()[3]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, any_order, rtol=1e-4, atol=1e-4 * any_order.abs().max().item())


@pytest.mark.parametrize("dim", [64, 256])
def test_packed_batch(dim):
    given = [random(200, 4, dim) for _ in range(3)]
    ends = [0, 90, 200]
    starts = torch.tensor(ends, dtype=torch.int32)
    out = serving.varlen_func(*given, starts, starts, 110, 110)
    incoming = random(*out.shape, requires_grad=False)
    got = gradients([out], given, [incoming])
    references = []
    for dtype in (torch.float64, torch.bfloat16):
        tensors = [x.detach().to(dtype).requires_grad_() for x in given]
        parts = [dense(*(x[begin:end].transpose(0, 1)[None] for x in tensors), None, None, None)[0][0].transpose(0, 1)
                 for begin, end in zip(ends[:-1], ends[1:], strict=True)]
        references.append(gradients([torch.cat(parts)], tensors, [incoming.to(dtype)]))
    assert_close(got, *references)


@pytest.mark.parametrize("dim", [64, 128])
def test_deterministic_algorithms(dim):
    given = qkv(q_len=700, dim=dim)
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(3):
            out = flex_attention(*given)
            runs.append(gradients([out], given, [torch.ones_like(out)]))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x, y) for run in runs[1:] for x, y in zip(runs[0], run, strict=True))


def test_take_over():
    for dim in (64, 264):  # a GPU takes up to 256
        given = qkv(dim=dim)
        heddle.torch.clear_log()
        with heddle.torch.enabled():
            torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True).float().sum().backward()
        (entry,) = heddle.torch.log()
        assert (entry.where == "heddle") == (dim == 64 or DEVICE == "cpu") and all(x.grad is not None for x in given)
        assert entry.where == "heddle" or "head dimension 264" in entry.where
