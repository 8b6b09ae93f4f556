"""Autograd: what is saved and computed, checkpoints, torch.func, what is refused, torch's own ways in."""

import gc
import weakref

import pytest
import torch
from torch.nn.attention import activate_flash_attention_impl, flex_attention as torch_flex, restore_flash_attention_impl
from torch.utils.checkpoint import checkpoint

import heddle.torch
from gradient_reference import alibi, assert_same, causal, dense, qkv, random, slopes
from heddle import _core
from heddle.torch import AuxRequest, _direct, create_block_mask, flex_attention, scaled_dot_product_attention
from heddle.torch.serving import varlen_func, with_kvcache

torchs_sdpa = torch.nn.functional.scaled_dot_product_attention


# --- what autograd keeps and computes ------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """The targets and the options of each backward. Python makes all of them: C++ knows no call."""
    seen = []

    def spied(inputs, targets, arguments, real=_core.attention_backward):
        seen.append((targets, arguments))
        return real(inputs, targets, arguments)

    monkeypatch.setattr(_core, "attention_backward", spied)
    monkeypatch.setattr(_direct, "attend", lambda *_: None)
    return seen


def test_only_what_is_needed_is_computed(asked):
    q, k, v = (x.detach() for x in qkv())
    bias = random(17, seed=4, requires_grad=False)

    def mod(score, b, h, q_idx, kv_idx):
        return alibi(score, b, h, q_idx, kv_idx) + bias[kv_idx]

    flex_attention(q, k.requires_grad_(), v, mod).sum().backward(inputs=[k])
    flex_attention(q, k, v, mod).sum().backward()
    first, second = (targets for targets, _ in asked)
    assert first.q is first.v is first.sinks is False and isinstance(first.k, torch.Tensor)
    assert len(first.captures) == 0 or set(first.captures) == {"slopes"}
    assert set(second.captures) == {"slopes"}
    with torch.no_grad():
        assert flex_attention(q, k, v, mod).grad_fn is None
    slopes.grad = None


def test_captures_without_a_gradient_are_not_asked_for(asked):
    q, k, v = qkv()
    frozen = slopes.detach()
    flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + frozen[h]).sum().backward()
    assert not asked[0][0].captures and asked[0][0].q is not False


def test_the_deterministic_switch(asked):
    q, k, v = qkv()
    for wanted in (False, True):
        torch.use_deterministic_algorithms(wanted)
        try:
            flex_attention(q, k, v).sum().backward()
        finally:
            torch.use_deterministic_algorithms(False)
    assert [arguments.deterministic for _, arguments in asked] == [False, True]


def test_what_is_saved():
    q, k, v = qkv(q_len=64, kv_len=64)
    saved = []
    mask = create_block_mask(causal, None, None, 64, 64, "cpu")
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x), x)[1], lambda x: x):
        out = flex_attention(q, k, v, alibi, mask)
    # lse and lse_rest are two tensors, of a repeated call one.
    expected = sum(x.numel() for x in (q, k, v, out, slopes)) + 2 * q[..., 0].numel()
    assert sum(x.numel() for x in saved) == expected and len(saved) in (6, 7)


def test_saved_tensors_may_move():
    q, k, v = qkv()
    want = torch.autograd.grad(flex_attention(q, k, v, alibi).sum(), [q, k, v, slopes])
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy(force=True).copy(), torch.from_numpy):
        out = flex_attention(q, k, v, alibi)
    got = torch.autograd.grad(out.sum(), [q, k, v, slopes])
    assert all(torch.equal(x, y) for x, y in zip(got, want))


def test_a_write_between_forward_and_backward_is_noticed():
    for i in range(4):
        q, k, v = (x.detach().clone() for x in qkv())
        bias = slopes.detach().clone()
        leaf = random(1)
        tensors = [x * leaf for x in (q, k, v, bias)]
        out = flex_attention(*tensors[:3], lambda score, b, h, q_idx, kv_idx: score + tensors[3][h])
        tensors[i].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_backward_twice_of_one_graph():
    q, k, v = qkv()
    out = flex_attention(q, k, v, alibi)
    first = torch.autograd.grad(out.sum(), [q, k, slopes], retain_graph=True)
    second = torch.autograd.grad(out.sum(), [q, k, slopes])
    assert all(torch.equal(x, y) for x, y in zip(first, second))
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def test_nothing_outlives_its_graph():
    q, k, v = qkv()
    bias = random(4, seed=2)
    out = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + bias[h])
    out.sum().backward()
    kept = [weakref.ref(x) for x in (q, k, v, out, bias)]
    del q, k, v, out, bias
    gc.collect()
    assert all(one() is None for one in kept)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    q, k, v = qkv()
    bias = random(4, seed=2)

    def block(q, k, v, bias):
        out = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * bias[h].exp())
        return scaled_dot_product_attention(out, k, v, dropout_p=0.2)

    torch.manual_seed(3)
    want = torch.autograd.grad(block(q, k, v, bias).square().sum(), [q, k, v, bias])
    torch.manual_seed(3)
    for x in (q, k, v, bias):
        x.grad = None
    checkpoint(block, q, k, v, bias, use_reentrant=reentrant).square().sum().backward()
    assert all(torch.equal(x.grad, y) for x, y in zip((q, k, v, bias), want))


def test_checkpoint_of_a_captured_tensor():
    q, k, v = qkv()
    want = torch.autograd.grad(flex_attention(q, k, v, alibi).sum(), [slopes])
    out = checkpoint(flex_attention, q, k, v, alibi, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(out.sum(), [slopes])[0], want[0])


def test_selective_checkpoint():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    q, k, v = qkv()
    want = torch.autograd.grad(flex_attention(q, k, v, alibi).sum(), [q, slopes])
    for policy in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE):
        out = checkpoint(flex_attention, q, k, v, alibi, use_reentrant=False,
                         context_fn=lambda: create_selective_checkpoint_contexts(lambda *_, **__: policy))
        assert_same(torch.autograd.grad(out.sum(), [q, slopes]), want, 1e-12)


def test_autocast():
    q, k, v = qkv(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = flex_attention(q, k, v)
        assert out.dtype == torch.bfloat16
        got = torch.autograd.grad(out.float().sum(), [q, k, v])
    rounded = [x.bfloat16() for x in (q, k, v)]
    want = torch.autograd.grad(flex_attention(*rounded).float().sum(), [q, k, v])
    assert [x.dtype for x in got] == [torch.float32] * 3
    assert all(torch.equal(x, y) for x, y in zip(got, want))


def test_gradcheck():
    q, k, v = qkv(batch=1, heads=2, kv_heads=1, q_len=4, kv_len=5, dim=3)
    bias = random(2, 5, seed=4)
    mask = create_block_mask(causal, None, None, 4, 5, "cpu")

    def call(q, k, v, bias):
        out, aux = flex_attention(
            q, k, v, lambda score, b, h, q_idx, kv_idx: torch.tanh(score * bias[h, kv_idx]) * 2, mask, enable_gqa=True,
            return_aux=AuxRequest(lse=True))
        return out, aux.lse

    assert torch.autograd.gradcheck(call, (q, k, v, bias))


# --- torch.func ----------------------------------------------------------------------------------------------------


def of_slopes(attend, q, k, v):
    def call(slopes):
        made = attend(q, k, v, lambda score, b, h, q_idx, kv_idx: score + (2 * slopes)[h] * kv_idx + slopes.sum())
        return made[0] if isinstance(made, tuple) else made

    return call


def test_func_grad():
    q, k, v, bias = (x.detach() for x in (*qkv(), slopes))
    got, want = (
        torch.func.grad(lambda *x: of_slopes(attend, *x[:3])(x[3]).square().sum(), (0, 1, 2, 3))(q, k, v, bias)
        for attend in (flex_attention, dense))
    assert_same(got, want, 1e-12)


def test_func_jacobians_and_vmap():
    q, k, v, bias = (x.detach() for x in (*qkv(batch=1, q_len=3), slopes))
    got, want = (torch.func.jacrev(of_slopes(attend, q, k, v))(bias) for attend in (flex_attention, dense))
    assert_same([got], [want], 1e-12)
    stacked = torch.stack([bias, 2 * bias, -bias])
    per_sample = [torch.vmap(torch.func.grad(lambda x, attend=attend: of_slopes(attend, q, k, v)(x).square().sum()))
                  for attend in (flex_attention, dense)]
    assert_same([per_sample[0](stacked)], [per_sample[1](stacked)], 1e-12)
    queries = torch.stack([q, 2 * q])
    sums = [torch.func.grad(lambda x, attend=attend: torch.vmap(
        lambda one: of_slopes(attend, one, k, v)(bias).square().sum())(x).sum()) for attend in (flex_attention, dense)]
    assert_same([sums[0](queries)], [sums[1](queries)], 1e-12)


def test_vmap_of_a_block_mask_with_lists():
    q, k, v = (x.detach() for x in qkv(kv_len=13))
    mask = create_block_mask(causal, None, None, 13, 13, "cpu", BLOCK_SIZE=4)
    lists = heddle.torch.BlockMask.from_kv_blocks(
        mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices, 4, causal, (13, 13))
    got = torch.vmap(torch.func.grad(lambda q: flex_attention(q, k, v, alibi, lists).square().sum()))(
        torch.stack([q, -q]))
    want = torch.vmap(torch.func.grad(lambda q: dense(q, k, v, alibi, causal)[0].square().sum()))(torch.stack([q, -q]))
    assert_same([got], [want.detach()], 1e-12)


# --- refused -------------------------------------------------------------------------------------------------------


def test_double_backward_is_refused():
    q, k, v = qkv()
    for call in (lambda q: flex_attention(q, k, v, alibi), lambda q: scaled_dot_product_attention(q, k, v)):
        (first,) = torch.autograd.grad(call(q).sum(), q, create_graph=True)
        with pytest.raises(NotImplementedError, match="no double backward"):
            first.sum().backward()
        with pytest.raises(NotImplementedError, match="no double backward"):
            torch.func.grad(lambda q: torch.func.grad(lambda q: call(q).sum())(q).sum())(q.detach())


def test_batched_gradients_are_refused():
    q, k, v = qkv()
    out = flex_attention(q, k, v)
    with pytest.raises(NotImplementedError, match="torch.func.vmap"):
        torch.autograd.grad(out, q, torch.ones(2, *out.shape, dtype=out.dtype), is_grads_batched=True)


def test_forward_mode_is_refused():
    q, k, v = (x.detach() for x in qkv())
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda q: flex_attention(q, k, v), (q,), (q,))


def test_what_has_no_gradient_is_refused():
    cache, q = random(4, 16, 2, 8, dtype=torch.float32), random(1, 1, 2, 8, dtype=torch.float32)
    table, lengths = torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([20], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="in pages have no backward"):
        with_kvcache(q, cache, cache, cache_seqlens=lengths, page_table=table)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="out= is given, which autograd cannot record"):
        varlen_func(q[0], q[0], q[0], starts, starts, 1, 1, out=torch.empty(1, 2, 8))
    factor = torch.ones(1, 2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="q_descale has no gradient"):
        varlen_func(q[0], q[0], q[0], starts, starts, 1, 1, q_descale=factor)


# --- torch's own ways in -------------------------------------------------------------------------------------------


def test_a_module_of_torchs_trains():
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True).double()
    x = random(2, 5, 16)
    leaves = [x, *module.parameters()]
    want = torch.autograd.grad(module(x, x, x, need_weights=False)[0].square().sum(), leaves)
    heddle.torch.clear_log()
    with heddle.torch.enabled():
        got = torch.autograd.grad(module(x, x, x, need_weights=False)[0].square().sum(), leaves)
    assert [(entry.where, entry.count) for entry in heddle.torch.log()] == [("heddle", 1)]
    assert_same(got, want, 1e-12)


@pytest.mark.filterwarnings("ignore:Warning only once")
@pytest.mark.parametrize("form", ["sdpa", "batched", "packed"])
def test_the_flash_attention_implementation(form):
    q, k, v = (random(2, 4, 13, 8, seed=seed) for seed in (1, 2, 3))
    want = torch.autograd.grad(torchs_sdpa(q, k, v, is_causal=True).square().sum(), [q, k, v])
    activate_flash_attention_impl("heddle")
    try:
        if form == "sdpa":
            out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        else:
            rows = [x.transpose(1, 2) for x in (q, k, v)]
            starts = torch.tensor([0, 13, 26], dtype=torch.int32) if form == "packed" else None
            rows = [x.flatten(0, 1) for x in rows] if form == "packed" else rows
            out = torch.ops.aten._flash_attention_forward(*rows, starts, starts, 13, 13, 0.0, True, False)[0]
        assert_same(torch.autograd.grad(out.square().sum(), [q, k, v]), want, 1e-12)
        with pytest.raises(NotImplementedError, match="alibi_slopes"):
            torch.ops.aten._flash_attention_forward(
                q, k, v, None, None, 13, 13, 0.0, True, False, alibi_slopes=torch.ones(4))
        ones = torch.eye(13, dtype=torch.float64).expand(2, 4, 13, 13).clone().requires_grad_()
        made = torch.ops.aten._scaled_dot_product_flash_attention(q, k, ones, 0.5, False)[0]
        (got,) = torch.autograd.grad(made.sum(), ones)  # the backward draws the forward's bits
        assert_same([got], [made.detach().sum(-2)[..., None].expand_as(ones)], 1e-12)
    finally:
        restore_flash_attention_impl()


LISTS = torch_flex.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 13, 17, "cpu", BLOCK_SIZE=4)


@pytest.mark.parametrize("name", ["a score", "lists", "a mask", "dense"])
def test_a_first_call_in_a_checkpoint(name):
    """The first call of its kind and the next save as many tensors: a checkpoint compares them."""
    q, k, v = qkv()
    factor = torch.rand(())
    calls = {
        "a score": lambda q: flex_attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + factor * (kv_idx - q_idx)),
        "lists": lambda q: flex_attention(q, k, v, block_mask=LISTS),
        "a mask": lambda q: flex_attention(q, k, v, block_mask=create_block_mask(
            lambda b, h, q_idx, kv_idx: q_idx >= kv_idx * factor, None, None, 13, 17, "cpu")),
        "dense": lambda q: scaled_dot_product_attention(q, k, v, attn_mask=factor * torch.ones(13, 17)),
    }
    made = checkpoint(calls[name], q, use_reentrant=False).square().sum()
    (got,) = torch.autograd.grad(made, q)
    (want,) = torch.autograd.grad(calls[name](q).square().sum(), q)
    torch.testing.assert_close(got, want)
