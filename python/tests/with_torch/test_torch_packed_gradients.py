"""Calls of packed sequences that autograd records: C++ makes the forward and the backward, Python what it leaves."""

import pytest
import torch
from torch.nn.attention.varlen import AuxRequest
from torch.utils._python_dispatch import TorchDispatchMode

from gradient_reference import assert_gradients, assert_same, dense, random
from heddle.torch import _backward_plans, _gradients, _recorded, serving, varlen_attn

LENGTHS = {"ragged": ([3, 0, 5, 1], [4, 2, 0, 9]), "one": ([7], [7]), "none": ([0, 0], [0, 0])}
USED = {"ragged": [3, 1, 0, 9], "one": [4], "none": [0, 0]}


def starts(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def window_mask(shift, left, right):
    return lambda b, h, q_idx, kv_idx: ((kv_idx <= q_idx + shift + right) | (right < 0)) & (
        (kv_idx >= q_idx + shift - left) | (left < 0))


def reference(q, k, v, q_lengths, kv_lengths, window, used):
    """(out, lse) of torch's operations, a sequence after the other."""
    outs, lses = [q[:0]], [q[:0, :, 0].T]
    q_parts, k_parts, v_parts = q.split(q_lengths), k.split(kv_lengths), v.split(kv_lengths)
    for own_q, own_k, own_v, count in zip(q_parts, k_parts, v_parts, used or kv_lengths):
        if own_q.shape[0] == 0:
            continue
        if count == 0:
            outs.append(own_q * 0.0)
            lses.append(torch.full_like(own_q[:, :, 0].T, -torch.inf))
            continue
        rows = [x.transpose(0, 1)[None] for x in (own_q, own_k[:count], own_v[:count])]
        out, lse = dense(*rows, None, window_mask(count - own_q.shape[0], *window))
        outs.append(out[0].transpose(0, 1))
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, 1)


@pytest.fixture
def makers(monkeypatch):
    """Who recorded each call, and who made its backward, where that is not C++."""
    seen = []

    def by_python(*given, real=_recorded.by_python):
        seen.append("backward by python")
        return real(*given)

    def recorded(ctx, *arguments, real=_gradients.Attention.forward):
        seen.append("recorded by python")
        return real(ctx, *arguments)

    monkeypatch.setattr(_recorded, "by_python", by_python)
    monkeypatch.setattr(_gradients.Attention, "forward", staticmethod(recorded))
    return seen


def inputs(lengths, heads=4, kv_heads=2, dim=8, behind=0):
    rows, keys = sum(lengths[0]) + behind, sum(lengths[1]) + behind
    return random(rows, heads, dim, seed=1), random(keys, kv_heads, dim, seed=2), random(keys, kv_heads, dim, seed=3)


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 1), (3, -1)])
@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize("is_used", [False, True])
def test_gradients(makers, name, window, with_lse, is_used):
    lengths, used = LENGTHS[name], USED[name] if is_used else None
    q, k, v = inputs(lengths)
    given = starts(lengths[0]), starts(lengths[1]), max(lengths[0]), max(lengths[1])
    more = {"seqused_k": torch.tensor(used, dtype=torch.int32)} if used else {}
    calls = {
        "varlen_attn": lambda: varlen_attn(q, k, v, *given, window_size=window, enable_gqa=True,
                                           return_aux=AuxRequest(lse=with_lse), **more),
        "varlen_func": lambda: serving.varlen_func(q, k, v, *given, window_size=window, return_softmax_lse=with_lse, **more),
    }
    for call in calls.values():
        assert_gradients(lambda: call() if with_lse else [call()],
                         lambda: reference(q, k, v, *lengths, window, used)[:1 + with_lse], [q, k, v])
    assert makers == []


def test_rows_behind_the_last_sequence(makers):
    lengths = LENGTHS["ragged"]
    q, k, v = inputs(lengths, behind=3)
    out = varlen_attn(q, k, v, starts(lengths[0]), starts(lengths[1]), 5, 9, enable_gqa=True)
    rows = q[:-3], k[:-3], v[:-3]
    incoming = random(*out.shape, seed=5, requires_grad=False)
    want = torch.autograd.grad(reference(*rows, *lengths, (-1, -1), None)[0], [q, k, v], incoming[:-3])
    assert_same(torch.autograd.grad(out, [q, k, v], incoming), want, 1e-12)
    assert makers == []


def test_what_python_makes_of_them(makers):
    """Gradients of lse alone, under a mode, and of saved tensors that hooks turned."""
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), kwargs=None):
            return function(*arguments, **(kwargs or {}))

    lengths = LENGTHS["ragged"]
    q, k, v = inputs(lengths)
    given = starts(lengths[0]), starts(lengths[1]), 5, 9

    def call(**options):
        return varlen_attn(q, k, v, *given, window_size=(2, 1), enable_gqa=True, **options)

    want_out, want_lse = reference(q, k, v, *lengths, (2, 1), None)
    want = torch.autograd.grad(want_out.sum(), [q, k, v], retain_graph=True)
    made = [call()]
    with torch.autograd.graph.saved_tensors_hooks(
            lambda x: x, lambda x: x.mT.contiguous().mT if x.dim() == 3 and x.shape[-1] == 8 else x):
        made += [call(), call(return_aux=AuxRequest(lse=True))[0]]
    for at, out in enumerate(made):
        makers.clear()
        if at == 0:
            with Mode():
                got = torch.autograd.grad(out.sum(), [q, k, v])
        else:
            got = torch.autograd.grad(out.sum(), [q, k, v])
        assert_same(got, want, 1e-12)
        assert makers == ["backward by python"]
    _, lse = call(return_aux=AuxRequest(lse=True))
    of_lse = [torch.where(x.isfinite(), x, 0.0).sum() for x in (lse, want_lse)]
    assert_same(torch.autograd.grad(of_lse[0], [q, k]), torch.autograd.grad(of_lse[1], [q, k]), 1e-12)


def test_lengths_that_are_written_before_the_backward():
    lengths = LENGTHS["ragged"]
    for at in range(3):
        q, k, v = inputs(lengths)
        numbers = [starts(lengths[0]), starts(lengths[1]), torch.tensor(USED["ragged"], dtype=torch.int32)]
        out = varlen_attn(q, k, v, *numbers[:2], 5, 9, enable_gqa=True, seqused_k=numbers[2])
        numbers[at].zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_refusals():
    lengths = LENGTHS["ragged"]
    q, k, v = inputs(lengths)
    given = starts(lengths[0]), starts(lengths[1])
    with pytest.raises(ValueError, match=r"cu_seq_q\[3\] is 8 after 3; sequences of up to max_q 4 rows"):
        varlen_attn(q, k, v, *given, 4, 9, enable_gqa=True)
    with pytest.raises(ValueError, match="cu_seq_k is f32"):
        varlen_attn(q, k, v, given[0], given[1].float(), 5, 9, enable_gqa=True)
    pages, table = torch.randn(2, 8, 2, 8, dtype=torch.float64), torch.zeros(4, 1, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="pages have no backward"):
        varlen_attn(q, pages, pages, given[0], None, 5, 9, enable_gqa=True, block_table=table,
                    seqused_k=torch.zeros(4, dtype=torch.int32))
    first, = torch.autograd.grad(varlen_attn(q, k, v, *given, 5, 9, enable_gqa=True).sum(), [q], create_graph=True)
    with pytest.raises(NotImplementedError, match="no double backward"):
        first.sum().backward()


def test_a_backward_that_does_not_exist_is_said_by_the_forward(monkeypatch):
    asked = []
    monkeypatch.setattr(_backward_plans, "ASKED_ON", {"cpu"})
    monkeypatch.setattr(_backward_plans, "reason_against", lambda call, wanted: asked.append(call) or "no kernel")
    monkeypatch.setattr(_backward_plans, "_reasons", {})
    lengths = LENGTHS["ragged"]
    q, k, v = inputs(lengths)
    with pytest.raises(NotImplementedError, match="no kernel. An input requires a gradient"):
        varlen_attn(q, k, v, starts(lengths[0]), starts(lengths[1]), 5, 9, window_size=(-1, 0), enable_gqa=True)
    made, = asked
    assert made.query.shape == (1, 4, 9, 8) and made.mask is not None and (made.max_q_len, made.max_kv_len) == (5, 9)


def test_what_is_recorded_keeps_nothing_alive(makers):
    import gc
    import weakref

    lengths = LENGTHS["ragged"]
    q, k, v = inputs(lengths)
    numbers = starts(lengths[0]), starts(lengths[1])
    out = varlen_attn(q, k, v, *numbers, 5, 9, enable_gqa=True)
    out.sum().backward()
    kept = [weakref.ref(x) for x in (q, k, v, out, *numbers)]
    del q, k, v, out, numbers
    gc.collect()
    assert all(one() is None for one in kept) and makers == []
