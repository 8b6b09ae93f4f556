"""Gradients of eager calls beside torch's own: shapes, layouts, what is saved, what is computed, what is refused."""

import gc
import weakref

import pytest
import torch
from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl
from torch.utils.checkpoint import checkpoint

import heddle.torch
from gradient_reference import assert_same, dense, gradients
from heddle import _core
from heddle.torch import AuxRequest, create_block_mask, flex_attention, scaled_dot_product_attention, varlen_attn
from heddle.torch._trace import Mods
from heddle.torch.serving import varlen_func, with_kvcache

torchs_sdpa = torch.nn.functional.scaled_dot_product_attention


def random(*shape, seed=0, dtype=torch.float64, requires_grad=True):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(requires_grad)


def qkv(batch=2, heads=4, kv_heads=4, q_len=13, kv_len=17, dim=8, dtype=torch.float64):
    return [random(batch, heads, q_len, dim, seed=1, dtype=dtype),
            *(random(batch, kv_heads, kv_len, dim, seed=seed, dtype=dtype) for seed in (2, 3))]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


slopes = random(4, seed=9)


def alibi(score, b, h, q_idx, kv_idx):
    return score + slopes[h] * (kv_idx - q_idx)


def assert_gradients(ours, torchs, leaves, tolerance=1e-12):
    results, wanted = ours(), torchs()
    incoming = [random(*x.shape, seed=5, dtype=x.dtype, requires_grad=False) for x in results]
    got = gradients(results, leaves, incoming)
    assert_same(got, gradients(wanted, leaves, incoming), tolerance)
    return got


# --- scaled_dot_product_attention ----------------------------------------------------------------------------------

SDPA = {
    "plain": {}, "causal": {"is_causal": True}, "scale": {"scale": 0.3},
    "bias": {"attn_mask": random(2, 4, 13, 17, seed=7)}, "bias of keys": {"attn_mask": random(2, 1, 1, 17, seed=7)},
    "bias of all heads": {"attn_mask": random(13, 17, seed=7)},
    "bool mask": {"attn_mask": random(13, 17, seed=7, requires_grad=False) > -0.5}}


@pytest.mark.parametrize("name", SDPA)
def test_sdpa(name):
    q, k, v = qkv()
    options = SDPA[name]
    mask = options.get("attn_mask")
    leaves = [q, k, v] + ([mask] if mask is not None and mask.requires_grad else [])
    assert_gradients(lambda: [scaled_dot_product_attention(q, k, v, **options)],
                     lambda: [torchs_sdpa(q, k, v, **options)], leaves)


@pytest.mark.parametrize(("q_shape", "kv_shape", "gqa"), [
    ((13, 8), (17, 8), False), ((3, 13, 8), (3, 17, 8), False), ((2, 3, 4, 13, 8), (2, 3, 4, 17, 8), False),
    ((2, 6, 13, 8), (2, 2, 17, 8), True), ((2, 4, 13, 8), (1, 4, 17, 8), False), ((2, 4, 13, 8), (2, 1, 17, 8), False)])
def test_sdpa_of_other_shapes(q_shape, kv_shape, gqa):
    q, k, v = random(*q_shape, seed=1), random(*kv_shape, seed=2), random(*kv_shape, seed=3)
    assert_gradients(lambda: [scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)],
                     lambda: [torchs_sdpa(q, k, v, is_causal=True, enable_gqa=gqa)], [q, k, v])


def test_dropout_draws_the_forwards_bits_again():
    q, k, v = qkv(q_len=32, kv_len=32)

    def seeded(*tensors):
        torch.manual_seed(11)
        return scaled_dot_product_attention(*tensors, dropout_p=0.4)

    assert torch.autograd.gradcheck(seeded, (q[:1, :1, :5], k[:1, :1, :6], v[:1, :1, :6]), fast_mode=True)
    weights = seeded(q, k, torch.eye(32, dtype=torch.float64).expand(2, 4, 32, 32))  # o of v = 1 is P w itself
    assert 0.3 < (weights == 0).double().mean() < 0.5
    out = seeded(q, k, v)
    (got,) = torch.autograd.grad(out.sum(), v)
    assert_same([got], [weights.sum(-2)[..., None].expand_as(v)], 1e-12)


# --- flex_attention ------------------------------------------------------------------------------------------------


def flex_both(q, k, v, score_mod=None, mask_mod=None, **options):
    mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, q.shape[2], k.shape[2], "cpu")

    def ours():
        out, aux = flex_attention(q, k, v, score_mod, mask, return_aux=AuxRequest(lse=True), **options)
        return out, aux.lse

    return ours, lambda: dense(q, k, v, score_mod, mask_mod, options.get("scale"))


def test_groups_of_heads():
    q, k, v = qkv(heads=4, kv_heads=2)
    assert_gradients(*flex_both(q, k, v, alibi, causal, enable_gqa=True, scale=0.2), [q, k, v, slopes])


def test_keys_that_the_batch_shares():
    q, k, v = random(3, 4, 13, 8, seed=1), random(1, 4, 17, 8, seed=2), random(1, 4, 17, 8, seed=3)
    got = assert_gradients(*flex_both(q, k, v, alibi, causal), [q, k, v, slopes])
    assert got[1].shape[0] == 1


def test_expanded_and_strided_inputs():
    packed, k, wide = random(2, 13, 3, 4, 8, seed=1), random(2, 1, 17, 8, seed=2), random(2, 4, 17, 16, seed=3)
    q, keys, values = packed[:, :, 1].transpose(1, 2), k.expand(2, 4, 17, 8), wide[..., ::2]
    assert_gradients(*flex_both(q, keys, values, alibi, causal), [packed, k, wide, slopes])


def test_layouts_are_those_of_the_inputs():
    rows = [random(2, 13, 4, 8, seed=seed, dtype=torch.float32) for seed in (1, 2, 3)]
    q, k, v = (x.detach().transpose(1, 2).requires_grad_() for x in rows)
    flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * table.T[kv_idx, h])[..., 0].sum().backward()
    for x in (q, k, v):
        assert x.grad.stride() == x.stride() and x.grad.dtype == x.dtype
    assert table.grad.is_contiguous() and table.grad.any()


table = random(4, 13, seed=4, dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types(dtype):
    given = qkv(dtype=dtype)
    bias = random(4, seed=6, dtype=dtype)

    def mod(score, b, h, q_idx, kv_idx):
        return score + bias[h] * kv_idx

    exact = [x.detach().double().requires_grad_() for x in (*given, bias)]

    def exact_mod(score, b, h, q_idx, kv_idx):
        return score + exact[3][h] * kv_idx

    out = flex_attention(*given, mod)
    incoming = random(*out.shape, seed=5, dtype=dtype, requires_grad=False)
    got = gradients([out], [*given, bias], [incoming])
    want = gradients([dense(*exact[:3], exact_mod)[0]], exact, [incoming.double()])
    assert [x.dtype for x in got] == [dtype] * 4
    for x, y in zip(got, want):
        assert (x.double() - y).abs().max() <= 8 * torch.finfo(dtype).eps * max(1, y.abs().max().item())


def test_only_lse_and_only_out():
    q, k, v = qkv()
    for pick in (0, 1):
        ours, torchs = flex_both(q, k, v, alibi, causal)
        assert_gradients(lambda: [ours()[pick]], lambda: [torchs()[pick]], [q, k, v, slopes])


def test_rows_without_a_key_have_no_gradient():
    q, k, v = qkv()

    def few(b, h, q_idx, kv_idx):
        return (q_idx % 3 != 0) & (kv_idx < q_idx)

    got = assert_gradients(*flex_both(q, k, v, alibi, few), [q, k, v, slopes])
    assert not got[0][:, :, ::3].any()


def test_nothing_to_attend_to():
    q, k, v = random(1, 2, 3, 8), random(1, 2, 0, 8), random(1, 2, 0, 8)
    flex_attention(q, k, v).sum().backward()
    assert not q.grad.any() and k.grad.shape == k.shape


def test_a_capture_that_was_computed():
    q, k, v = qkv()
    raw = random(4, 8, seed=3)

    def results(attend):
        bias = (raw.exp() @ raw.T).tril()
        return [attend(q, k, v, lambda score, b, h, q_idx, kv_idx: score + bias[h, kv_idx % 4])]

    assert_gradients(lambda: results(flex_attention), lambda: [results(dense)[0][0]], [q, raw])


def test_a_capture_of_two_mods_and_of_two_calls():
    q, k, v = qkv()

    def results(attend):
        first = attend(q, k, v, alibi)
        first = first[0] if isinstance(first, tuple) else first
        second = attend(first, k, v, lambda score, b, h, q_idx, kv_idx: alibi(score, b, h, q_idx, kv_idx) * slopes[0])
        return [second[0] if isinstance(second, tuple) else second]

    assert_gradients(lambda: results(flex_attention), lambda: results(dense), [q, k, v, slopes])


def test_a_numbers_tensor_of_a_gpus_call_is_a_capture():
    """A learned 0-d tensor on the CPU, which elsewhere is a param."""
    factor = torch.tensor(2.0)

    def score(score, b, h, q_idx, kv_idx):
        return score * factor

    for learns in (False, True, False):
        factor.requires_grad_(learns)
        mods = Mods(torch.device("cuda"))
        mods.score(score)
        assert (list(mods.captures.values()) == [factor]) == learns and (list(mods.params.values()) == [2.0]) != learns
    with torch.no_grad():
        mods = Mods(torch.device("cuda"))
        mods.score(score)
    assert not mods.captures


def test_a_mask_has_no_gradient():
    q, k, v = qkv()
    limit = random(4, seed=3)
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: kv_idx * 0.1 > limit[h], None, 4, 13, 17, "cpu")
    out = flex_attention(q, k, v, alibi, mask)
    assert torch.autograd.grad(out.sum(), [q, limit], allow_unused=True)[1] is None


def test_a_dense_mod():
    q, k, v = qkv(kv_len=13)
    bias = random(13, seed=3)

    def ranked(score, b, h, q_idx, kv_idx):
        return score + bias[torch.sort(torch.stack([q_idx, kv_idx]))[0][0]]

    def ours():
        with heddle.torch.allow_dense():
            return [flex_attention(q, k, v, ranked)]

    assert_gradients(ours, lambda: [dense(q, k, v, ranked)[0]], [q, bias])


def test_detach_inside_of_a_mod():
    q, k, v = qkv()

    def half(score, b, h, q_idx, kv_idx):
        return score + slopes.detach()[h] * q_idx * kv_idx + slopes[h] * kv_idx

    assert_gradients(lambda: [flex_attention(q, k, v, half)], lambda: [dense(q, k, v, half)[0]], [q, slopes])
    with pytest.raises(NotImplementedError, match="detaches a value"):
        flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + score.detach())
    with torch.no_grad():
        flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + score.detach())


# --- packed sequences ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["varlen_attn", "varlen_func"])
def test_packed_sequences(function):
    q, k, v = random(10, 4, 8, seed=1), random(14, 4, 8, seed=2), random(14, 4, 8, seed=3)
    starts_q, starts_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 4, 10], [0, 6, 14]))
    sinks = random(4, seed=4)

    def ours():
        if function == "varlen_attn":
            return [varlen_attn(q, k, v, starts_q, starts_k, 6, 8)]
        return [varlen_func(q, k, v, starts_q, starts_k, 6, 8, sinks=sinks, score_mod=alibi)]

    def torchs():
        made = []
        for first, second in ((0, 1), (1, 2)):
            one = [x[a[first]:a[second]].transpose(0, 1)[None] for x, a in ((q, starts_q), (k, starts_k), (v, starts_k))]
            options = {} if function == "varlen_attn" else {"sinks": sinks, "score_mod": alibi}
            made.append(dense(*one, **options)[0][0].transpose(0, 1))
        return [torch.cat(made)]

    leaves = [q, k, v] + ([] if function == "varlen_attn" else [sinks, slopes])
    assert_gradients(ours, torchs, leaves)


def test_a_learned_softcap_window_and_lse_of_packed_sequences():
    q, starts = random(9, 2, 8, seed=1), torch.tensor([0, 9], dtype=torch.int32)

    def window(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= 3)

    def capped(score, b, h, q_idx, kv_idx):
        return 3.0 * torch.tanh(score / 3.0)

    x = [q.transpose(0, 1)[None]] * 3

    def torchs():
        out, lse = dense(*x, capped, window)
        return out[0].transpose(0, 1), lse[0]

    assert_gradients(lambda: varlen_func(q, q, q, starts, starts, 9, 9, causal=True, window_size=(3, 0), softcap=3.0,
                                         return_softmax_lse=True), torchs, [q])


# --- what autograd keeps and computes ------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """The targets and the options of each backward."""
    seen = []

    def spied(inputs, targets, arguments, real=_core.attention_backward):
        seen.append((targets, arguments))
        return real(inputs, targets, arguments)

    monkeypatch.setattr(_core, "attention_backward", spied)
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
    assert sorted(x.numel() for x in saved) == sorted(x.numel() for x in (q, k, v, out, q[..., 0], slopes))


def test_saved_tensors_may_move():
    q, k, v = qkv()
    want = torch.autograd.grad(flex_attention(q, k, v, alibi).sum(), [q, k, v, slopes])
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy(force=True).copy(), torch.from_numpy):
        out = flex_attention(q, k, v, alibi)
    got = torch.autograd.grad(out.sum(), [q, k, v, slopes])
    assert all(torch.equal(x, y) for x, y in zip(got, want))


def test_a_write_between_forward_and_backward_is_noticed():
    for place in range(4):
        q, k, v = (x.detach().clone() for x in qkv())
        bias = slopes.detach().clone()
        leaf = random(1)
        tensors = [x * leaf for x in (q, k, v, bias)]
        out = flex_attention(*tensors[:3], lambda score, b, h, q_idx, kv_idx: score + tensors[3][h])
        tensors[place].add_(1)
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
