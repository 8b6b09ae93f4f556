"""Repeated calls that autograd records: what C++ makes (core/recorded_calls.cc), and what it leaves to Python."""

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.utils._python_dispatch import TorchDispatchMode

from gradient_reference import alibi, assert_gradients, assert_same, causal, dense, qkv, random, slopes
from heddle.torch import (
    AuxRequest, _backward_plans, _gradients, _recorded, create_block_mask, flex_attention, scaled_dot_product_attention)

L, S = 13, 17


@pytest.fixture
def makers(monkeypatch):
    """Who made each backward: "c++" or "python". A forward that Python records is there as "recorded by python"."""
    seen = []

    def spied(call, saved, *rest, real=_recorded.by_python):
        seen[-1] = "python"
        return real(call, saved, *rest)

    def begun(ctx, *gradients, real=_recorded.Recorded.backward):
        seen.append("c++")
        return real(ctx, *gradients)

    def recorded(ctx, *arguments, real=_gradients.Attention.forward):
        seen.append("recorded by python")
        return real(ctx, *arguments)

    monkeypatch.setattr(_recorded, "by_python", spied)
    monkeypatch.setattr(_recorded.Recorded._backward_cls, "apply", begun)
    monkeypatch.setattr(_gradients.Attention, "forward", staticmethod(recorded))
    return seen


MASK = create_block_mask(causal, None, None, L, S, "cpu")
LISTS = flex.create_block_mask(causal, None, None, L, S, "cpu", BLOCK_SIZE=4)


def limit(b, h, q_idx, kv_idx):
    return kv_idx < 9 + 2 * h


OF_HEADS = create_block_mask(limit, 1, 4, L, S, "cpu")


@pytest.mark.parametrize(("score", "mask", "kv_heads"), [
    (None, None, 4), (None, None, 2), (alibi, None, 4), (None, MASK, 4), (alibi, MASK, 2), (None, LISTS, 4),
    (alibi, LISTS, 4), (None, OF_HEADS, 1)], ids=str)
@pytest.mark.parametrize("with_lse", [False, True])
def test_gradients(makers, score, mask, kv_heads, with_lse):
    q, k, v = qkv(kv_heads=kv_heads)
    leaves = [q, k, v, slopes] if score else [q, k, v]
    mod = None if mask is None else limit if mask is OF_HEADS else causal

    def ours():
        made = flex_attention(q, k, v, score, mask, enable_gqa=True, return_aux=AuxRequest(lse=with_lse))
        return (made[0], made[1].lse) if with_lse else made[:1]

    for _ in range(2):
        makers.clear()
        assert_gradients(ours, lambda: dense(q, k, v, score, mod)[:1 + with_lse], leaves)
    assert makers == ["c++"]


def test_a_dense_mask_with_a_gradient(makers):
    q, k, v = qkv()
    bias = random(1, 4, L, S, seed=7)
    for _ in range(2):
        makers.clear()
        assert_gradients(lambda: [scaled_dot_product_attention(q, k, v, bias)],
                         lambda: [torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)], [q, k, v, bias])
    assert makers == ["c++"]


def test_keys_of_all_sequences(makers):
    q, (k, v) = qkv()[0], (x.detach()[:1].requires_grad_() for x in qkv()[1:])
    for _ in range(2):
        makers.clear()
        assert_gradients(lambda: [flex_attention(q, k, v, None, MASK)],
                         lambda: dense(q, k.expand(2, -1, -1, -1), v.expand(2, -1, -1, -1), None, causal)[:1], [q, k, v])
    assert makers == ["c++"]


def test_only_what_is_needed_is_made(monkeypatch):
    made = []

    def seen(ctx, *gradients, real=_recorded.Recorded.backward):
        made.append(real(ctx, *gradients))
        return made[-1]

    monkeypatch.setattr(_recorded.Recorded._backward_cls, "apply", seen)
    q, k, v = qkv()
    frozen = slopes.detach()
    limits = random(S, seed=3)
    by_limit = create_block_mask(lambda b, h, q_idx, kv_idx: limits[kv_idx] > -1.0, None, None, L, S, "cpu")

    def of_frozen(score, b, h, q_idx, kv_idx):
        return score + frozen[h]

    for _ in range(2):
        flex_attention(q.detach(), k.detach(), v, alibi).sum().backward()
        flex_attention(q, k, v.detach(), of_frozen).sum().backward()
        flex_attention(q.detach(), k.detach(), v.detach(), alibi, by_limit).sum().backward()
    slopes.grad = None
    wanted = [[x is not None for x in one] for one in made[-3:]]
    # The call, query, key, value, captures by name.
    assert wanted[0] == [False, False, False, True, True]
    assert wanted[1] == [False, True, True, False, False]
    assert sum(wanted[2]) == 1 and made[-1][wanted[2].index(True)].shape == slopes.shape


def test_gradients_of_any_strides(makers):
    """sum() gives one number for all elements, a transpose any strides."""
    q, k, v = qkv()
    incoming = random(8, 13, 4, 2, seed=8, requires_grad=False).permute(3, 2, 1, 0)
    want = torch.autograd.grad((dense(q, k, v)[0] * incoming).sum(), [q, k, v])
    for _ in range(2):
        got = torch.autograd.grad(flex_attention(q, k, v), [q, k, v], incoming)
    assert_same(got, want, 1e-12)
    assert_same(torch.autograd.grad(flex_attention(q, k, v).sum(), [q, k, v]),
                torch.autograd.grad(dense(q, k, v)[0].sum(), [q, k, v]), 1e-12)
    assert makers == ["c++"] * 3


def test_lse_alone_has_a_gradient(makers):
    q, k, v = qkv()
    for _ in range(2):
        aux = flex_attention(q, k, v, return_aux=AuxRequest(lse=True))[1]
        got = torch.autograd.grad(aux.lse.sum(), [q, k])
    assert_same(got, torch.autograd.grad(dense(q, k, v)[1].sum(), [q, k]), 1e-12)
    assert makers[-1] == "python"  # a gradient of 0 for out has to be made


def test_saved_tensors_of_another_kind(makers):
    """Python makes the backward of tensors that hooks gave back with other strides."""
    q, k, v = qkv()
    want = torch.autograd.grad(flex_attention(q, k, v, alibi).sum(), [q, k, v, slopes])
    turned = lambda x: x.mT.contiguous().mT if x.dim() == 4 else x  # noqa: E731
    out = flex_attention(q, k, v, alibi)
    other = flex_attention(q, k, v, alibi, return_aux=AuxRequest(lse=True))[0]
    for one in (out, other):
        for saved in one.grad_fn._raw_saved_tensors:
            saved.register_hooks(lambda x: x, turned)
    makers.clear()
    for one in (out, other):
        assert_same(torch.autograd.grad(one.sum(), [q, k, v, slopes]), want, 1e-12)
    assert makers == ["python"] * 2


def test_hooks_of_all_saved_tensors(makers):
    """Python records a call under them: a checkpoint compares what a first call saves with what the next one saves."""
    q, k, v = qkv()
    want = torch.autograd.grad(flex_attention(q, k, v, alibi).sum(), [q, k, v, slopes])
    makers.clear()
    with torch.autograd.graph.save_on_cpu():
        out = flex_attention(q, k, v, alibi)
    assert makers == ["recorded by python"]
    assert_same(torch.autograd.grad(out.sum(), [q, k, v, slopes]), want, 1e-12)


def test_a_mode_sees_the_backward(makers):
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), kwargs=None):
            names.append(str(function))
            return function(*arguments, **(kwargs or {}))

    names = []
    q, k, v = qkv()
    for mask in (None, MASK, LISTS):
        want = torch.autograd.grad(flex_attention(q, k, v, alibi, mask).sum(), [q, slopes])
        out = flex_attention(q, k, v, alibi, mask).sum()
        makers.clear()
        names.clear()
        with Names():
            got = torch.autograd.grad(out, [q, slopes])
        assert makers == ["python"] and "heddle.backward.default" in names
        assert_same(got, want, 1e-12)


def test_calls_that_python_records(makers):
    q, k, v = qkv()
    half = q.half()

    def detached(score, b, h, q_idx, kv_idx):
        return score + slopes.detach()[h]

    calls = {
        "expanded keys": lambda: flex_attention(q, k[:, :, :1].expand(-1, -1, S, -1), v),
        "last stride": lambda: flex_attention(q, k.mT.contiguous().mT, v),
        "detached": lambda: flex_attention(q, k, v, detached),
        "types": lambda: flex_attention(half, k.half(), v),
    }
    for name, call in calls.items():
        for _ in range(2):
            makers.clear()
            call().sum().backward(inputs=[q])
        assert makers[0] == "recorded by python", name


def test_a_backward_that_does_not_exist_is_said_by_the_forward(monkeypatch):
    asked = []
    monkeypatch.setattr(_backward_plans, "ASKED_ON", {"cpu"})
    monkeypatch.setattr(_backward_plans, "reason_against", lambda call, wanted: asked.append(call) or "no kernel")
    monkeypatch.setattr(_backward_plans, "_reasons", {})
    q, k, v = qkv(dim=9)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="no kernel. An input requires a gradient"):
            flex_attention(q, k, v, alibi, MASK)
    assert len(asked) == 1 and asked[0].score is not None and asked[0].mask is not None
