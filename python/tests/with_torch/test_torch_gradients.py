"""Gradients of eager calls beside torch's own: functions, shapes, layouts, types."""

import warnings

import pytest
import torch

import heddle.torch
from gradient_reference import alibi, assert_gradients, assert_same, causal, dense, gradients, qkv, random, slopes
from heddle.torch import AuxRequest, create_block_mask, flex_attention, scaled_dot_product_attention, varlen_attn
from heddle.torch._tracing.kept import Mods
from heddle.torch.serving import varlen_func

torchs_sdpa = torch.nn.functional.scaled_dot_product_attention


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


table = random(4, 5, seed=9)
DETACHED = {
    "straight through": lambda s, b, h, i, j: s + (torch.round(slopes[h] * 3) - slopes[h] * 3).detach() * j + slopes[h] * j,
    "of two captures": lambda s, b, h, i, j: s * (1 + (slopes[h] * table[h, j % 5]).detach()) + table[h, i % 5] * slopes[h],
    "a row": lambda s, b, h, i, j: s + (table[h] * 2).detach()[j % 5] * table[h, i % 5],
    "an indexed row": lambda s, b, h, i, j: s + table[h].detach()[j % 5] * table[h][i % 5],
    "twice": lambda s, b, h, i, j: s + ((table[h, j % 5] * 2).detach() + slopes[h]).detach() * table[h, 0],
    "of nothing learned": lambda s, b, h, i, j: s + (i - j).float().detach() * slopes[h],
}


@pytest.mark.parametrize("name", DETACHED)
def test_values_of_captures_that_a_mod_detaches(name):
    q, k, v = qkv()
    table.requires_grad_()
    mod = DETACHED[name]
    leaves = [q, table] if "slopes" not in mod.__code__.co_names else [q, slopes, *([table] if "table" in mod.__code__.co_names else [])]
    assert_gradients(lambda: [flex_attention(q, k, v, mod)], lambda: [dense(q, k, v, mod)[0]], leaves)


def under_no_grad(score, b, h, q_idx, kv_idx):
    with torch.no_grad():
        fixed = slopes[h] * 2 + torch.sigmoid(slopes[h])
        with torch.enable_grad():
            learned = slopes[h] * kv_idx
    return score + fixed * q_idx + learned


@torch.no_grad()
def decorated(h):
    return torch.tanh(slopes)[h]


def under_inference_mode(score, b, h, q_idx, kv_idx):
    with torch.inference_mode():
        far = (q_idx - kv_idx) * 0.125
        fixed = slopes[h] * far
    return score + fixed + far * slopes[h] + decorated(h)


def in_place_under_no_grad(score, b, h, q_idx, kv_idx):
    added = slopes.detach()[h] * kv_idx
    with torch.no_grad():
        added += slopes[h]
        computed = slopes[h] * kv_idx
    with torch.no_grad():
        doubled = computed * 2
    return score + added * slopes[h] + doubled


@pytest.mark.parametrize("mod", [under_no_grad, under_inference_mode, in_place_under_no_grad])
def test_no_grad_inside_of_a_mod(mod):
    q, k, v = qkv()
    with torch.no_grad():  # this trace serves no call with gradients
        flex_attention(q, k, v, mod)
    assert_gradients(lambda: [flex_attention(q, k, v, mod)], lambda: [dense(q, k, v, mod)[0]], [q, slopes])


def test_a_score_under_no_grad_is_refused():
    q, k, v = qkv()

    def halved(score, b, h, q_idx, kv_idx):
        with torch.no_grad():
            fixed = score * 0.5
        return score + fixed

    with torch.no_grad():
        want = flex_attention(q, k, v, halved)
    torch.testing.assert_close(want, flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * 1.5).detach())
    with pytest.raises(NotImplementedError, match=r"torch.no_grad\(\)"):
        flex_attention(q, k, v, halved)


class Rounded(torch.autograd.Function):
    """Its gradient is another function than the one of its forward."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_a_backward_of_the_users_own_is_not_called():
    """A warning says so, for each call whose gradients may be others than the user's."""
    q, k, v = qkv()
    fixed = slopes.detach().clone()
    mod = lambda score, b, h, i, j: score + Rounded.apply(fixed[h] * 3) * j  # noqa: E731  # nothing of it has a gradient
    same = lambda score, b, h, i, j: score + torch.round(fixed[h] * 3) * j  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_gradients(lambda: [flex_attention(q, k, v, mod)], lambda: [dense(q, k, v, same)[0]], [q])
    fixed.requires_grad_()
    for one in (mod, lambda score, b, h, i, j: Rounded.apply(score)):
        for _ in range(2):
            with pytest.warns(UserWarning, match="its backward is not called"):
                flex_attention(q, k, v, one)


def test_detached_in_place():
    q, k, v = qkv()
    with pytest.raises(NotImplementedError, match="detaches a value"):
        flex_attention(q, k, v, lambda score, b, h, i, j: score + (score * j).detach_())
    in_place = lambda score, b, h, i, j: score + (slopes[h] * j).detach_() * slopes[h]  # noqa: E731
    not_in_place = lambda score, b, h, i, j: score + slopes.detach()[h] * j * slopes[h]  # noqa: E731
    assert_gradients(lambda: [flex_attention(q, k, v, in_place)], lambda: [dense(q, k, v, not_in_place)[0]], [q, slopes])
    with pytest.raises(NotImplementedError, match="write detach"):
        flex_attention(q, k, v, lambda score, b, h, i, j: score + slopes.detach_()[h])


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
            rows = [x[starts[first]:starts[second]] for x, starts in zip((q, k, v), (starts_q, starts_k, starts_k))]
            one = [x.transpose(0, 1)[None] for x in rows]
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
