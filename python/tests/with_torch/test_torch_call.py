"""A call as data: no field is lost on its way through the operators' arguments, autograd's context, and copies."""

import dataclasses
import weakref

import numpy as np
import torch

import heddle
import heddle.torch
from heddle.torch._call import SETTINGS, Call
from heddle.torch._operands import OPERANDS, call_of, operands

# Fields that the operators do without: they allocate their results, and a graph has no version of a mask.
EAGER_ALONE = {"out", "lse", "max_scores", "lse_rest", "version"}
FIELDS = [one.name for one in dataclasses.fields(Call)]


def whole_call():
    """A call in which no field has its default."""
    q, k, v = torch.randn(3, 2, 4, 6, 8).unbind()
    lists = heddle.BlockMask.from_lists(
        np.ones((2, 4, 1), np.int32), np.zeros((2, 4, 1, 1), np.int32), q_len=6, kv_len=6, block=(8, 8),
        mask_mod="kv_idx <= q_idx")
    call = Call(
        q, k, v, score="score + bias[h] * slope + n", mask="kv_idx <= q_idx", weight="1.0 if c else 0.5",
        captures={"bias": torch.rand(4)}, params={"n": 3, "slope": 0.5, "c": True}, options={"sinks": torch.rand(4)},
        lists=lists, version=5, clamps=True, with_lse=True, out=torch.zeros_like(q), lse=torch.zeros(2, 4, 6),
        max_scores=torch.zeros(2, 4, 6), lse_rest=torch.zeros(2, 4, 6))
    for number, (name, kind) in enumerate(SETTINGS.items(), start=2):
        setattr(call, name, {"float?": number / 8, "SymInt?": number, "bool?": True}[kind])
    plain = Call(q, k, v)
    assert all(name in ("query", "key", "value") or getattr(call, name) != getattr(plain, name) for name in FIELDS)
    return call


def assert_equal(got, want, name):
    if name == "lists":
        assert got == want or got.to_lists().kv_indices.tolist() == want.to_lists().kv_indices.tolist()
    elif isinstance(want, torch.Tensor):
        assert torch.equal(got, want), name
    elif isinstance(want, dict):
        assert list(got) == list(want), name
        for one in want:
            assert_equal(got[one], want[one], name)
    else:
        assert got == want, name


def test_through_the_operators_arguments():
    call = whole_call()
    rest = operands(call, 1, *call.listed())
    assert len(rest) == len(OPERANDS)
    again = call_of(call.query, call.key, call.value, *rest)
    for name in FIELDS:
        if name not in EAGER_ALONE:
            assert_equal(getattr(again, name), getattr(call, name), name)


def test_copies_have_all_fields():
    call = whole_call()
    for copy in (call.changed(), call.with_tensors(call.tensors())):
        for name in FIELDS:
            assert_equal(getattr(copy, name), getattr(call, name), name)
    assert call.changed(scale=7.0).scale == 7.0 and call.scale != 7.0


def test_a_call_without_tensors_keeps_none_alive():
    call = whole_call()
    tensors = call.tensors()
    held = call.without_tensors()
    again = held.with_tensors(tensors)
    for name in FIELDS:
        if name not in EAGER_ALONE - {"version"}:
            assert_equal(getattr(again, name), getattr(call, name), name)
    results = call.out, call.lse, call.max_scores, call.lse_rest
    alive = [weakref.ref(x) for x in (*tensors, *results)]
    del call, again, tensors, results
    assert not any(one() is not None for one in alive)


def test_what_the_library_gets():
    call = whole_call()
    made = call.arguments()
    for name in SETTINGS:
        assert getattr(made, name) == getattr(call, name)
    assert made.sinks is call.options["sinks"] and made.captures["bias"] is call.captures["bias"]
    assert (str(made.mask_mod), made.params, made.clamp_reads) == ("kv_idx <= q_idx", call.params, True)
    assert made.block_mask is not None
