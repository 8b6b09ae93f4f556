"""Arguments of the right type whose value or form means nothing: the error names the argument, what was given and what
is accepted. Errors of Python's and torch's own inside of a mod get a note."""

import pytest
import torch

import heddle
from heddle.torch import (
    create_block_mask, flashinfer, flex_attention, merge_states, scaled_dot_product_attention, varlen_attn)
from heddle.torch.serving import varlen_func, with_kvcache

X = torch.randn(1, 2, 6, 8)
P, STARTS = torch.randn(6, 2, 8), torch.tensor([0, 2, 6], dtype=torch.int32)
LSE = X[..., 0]
CACHE = torch.randn(2, 9, 2, 8)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def packed(**options):
    return lambda: varlen_func(P, P, P, STARTS, STARTS, 4, 4, **options)


def cached(**options):
    return lambda: with_kvcache(torch.randn(2, 1, 2, 8), CACHE, CACHE, cache_seqlens=ints(3, 4), **options)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


CALLS = {
    "more queries than rows": (packed(seqused_q=ints(1, 9)), r"seqused_q\[1\] is 9; 0 to 4 are accepted"),
    "fewer than none": (packed(seqused_q=ints(-1, 2)), r"seqused_q\[0\] is -1; 0 to 2 are accepted"),
    "real counts": (packed(seqused_q=torch.tensor([1.0, 2.0])), "seqused_q is torch.float32"),
    "counts of others": (packed(seqused_q=ints(1, 2, 3)), r"seqused_q is torch.int32 \[3\]; .* \[2\] are accepted"),
    "padding of others": (cached(cache_leftpad=ints(1)), r"cache_leftpad is torch.int32 \[1\]"),
    "negative padding": (cached(cache_leftpad=ints(1, -2)), r"cache_leftpad\[1\] is -2; 0 and more are accepted"),
    "negative cap": (packed(softcap=-1.0), "softcap is -1.0; finite numbers from 0"),
    "cap of no number": (packed(softcap=float("nan")), "softcap is nan"),
    "half a key": (lambda: varlen_attn(P, P, P, STARTS, STARTS, 4, 4, window_size=(1.5, 0)),
                   r"window_size is \(1.5, 0\); a pair of ints"),
    "complex sinks": (packed(sinks=torch.zeros(2, dtype=torch.complex64)), "sinks is torch.complex64; floating types"),
    "starts on another device": (
        lambda: varlen_attn(P, P, P, STARTS.to("meta"), STARTS, 4, 4), "cu_seq.* on meta; tensors of torch.strided on cpu"),
    "causal in words": (lambda: scaled_dot_product_attention(X, X, X, is_causal="yes"), "is_causal is str; a bool"),
    "values of others": (lambda: flex_attention(X, X, X.expand(2, 2, 6, 8)), "value has batch size 2 and key 1; equal"),
    "half a query": (lambda: create_block_mask(causal, None, None, 6.5, 6, "cpu"), "Q_LEN is 6.5; an int is accepted"),
    "half a head": (lambda: create_block_mask(causal, None, 1.5, 6, 6, "cpu"), "H is 1.5; an int is accepted"),
    "a mask of three": (lambda: create_block_mask(lambda b, h, i: i > 0, None, None, 6, 6, "cpu"), "a mask_mod .b, h, q_idx"),
    "options by number": (lambda: flex_attention(X, X, X, kernel_options={3: 4}), "kernel_options has the name 3"),
    "a huge scale": (lambda: flex_attention(X, X, X, scale=10**400), "scale is 1000.*; a float is accepted"),
    "parts of integers": (lambda: merge_states([X.int()], [LSE]), r"o_parts\[0\] is torch.int32; floating types"),
    "half lse": (lambda: merge_states([X], [LSE.half()]), r"lse_parts\[0\] is torch.float16; f32 and f64"),
    "parts elsewhere": (lambda: merge_states([X, X], [LSE, LSE.to("meta")]), r"lse_parts\[1\] is on meta; cpu"),
    "parts of NumPy": (lambda: merge_states([X.numpy()], [LSE]), r"o_parts\[0\] is ndarray; a tensor"),
    "a mod of two": (lambda: flex_attention(X, X, X, lambda s, b: s), r"a mod takes \(score, b, h, q_idx, kv_idx\)"),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_value_is_named(name):
    call, text = CALLS[name]
    with pytest.raises((TypeError, ValueError, RuntimeError, AssertionError), match=text):
        call()


def test_flashinfers_negative_cap_is_none():
    row = torch.randn(2, 8)
    want = flashinfer.single_decode_with_kv_cache(row, CACHE[0], CACHE[0])
    torch.testing.assert_close(flashinfer.single_decode_with_kv_cache(row, CACHE[0], CACHE[0], logits_soft_cap=-1.0), want)


def test_on_meta_tensors_counts_are_not_read():
    inputs = [P.to("meta")] * 3
    out = varlen_func(*inputs, STARTS.to("meta"), STARTS.to("meta"), 4, 4, seqused_q=ints(1, 2).to("meta"))
    assert out.shape == P.shape


MODS = {
    "a name of no tensor": (lambda s, b, h, q_idx, kv_idx: s.wrong, AttributeError),
    "a length": (lambda s, b, h, q_idx, kv_idx: len(s), TypeError),
    "a key": (lambda s, b, h, q_idx, kv_idx: {1: 2}[q_idx], KeyError),
    "axes": (lambda s, b, h, q_idx, kv_idx: torch.fft.fft(s), IndexError),
}


@pytest.mark.parametrize("name", MODS)
def test_errors_inside_of_a_mod_have_a_note(name):
    mod, kind = MODS[name]
    for _ in range(2):
        with pytest.raises(kind) as raised:
            flex_attention(X, X, X, mod)
        (note,) = raised.value.__notes__
        assert "symbolic score, b, h, q_idx, kv_idx" in note and "torch.where in place of branches, are accepted" in note


def test_mods_of_heddle_have_the_note_too():
    array = X.numpy()
    for mod in (lambda s, b, h, q_idx, kv_idx: len(s), lambda s, b, h, q_idx, kv_idx: {1: 2}[q_idx]):
        with pytest.raises((TypeError, KeyError)) as raised:
            heddle.attention(array, array, array, score_mod=mod)
        (note,) = raised.value.__notes__
        assert "symbolic score, b, h, q_idx, kv_idx" in note and "heddle's functions" in note


def test_forward_mode_is_refused_under_transforms():
    for derivative in (torch.func.hessian, torch.func.jacfwd):
        with pytest.raises(NotImplementedError, match="heddle.torch has no forward-mode derivative"):
            derivative(lambda q: flex_attention(q, X, X).sum())(X)
