"""Attention in one call."""

from __future__ import annotations

from typing import Any, Unpack

from . import _core
from ._alignment import align_captures
from ._named_arguments import refuse_wrong
from ._options import Options, given_arguments, refuse_arrays, refuse_unknown, spelled_out
from ._rows import with_unit_rows
from ._tensor import public
from ._types import Array


@spelled_out(Options)
def attention(
    q: Array, k: Array, v: Array, *, out: Array | None = None, lse: Array | None = None, return_lse: bool = False,
    max_scores: Array | None = None, lse_rest: Array | None = None, **options: Unpack[Options],
) -> Any:
    """``softmax(mod(scale * q k^T)) v``.

    q [B, Hq, Sq, Dqk], k [B, Hkv, Skv, Dqk], v [B, Hkv, Skv, Dv]: NumPy arrays, or arrays of any library that supports
    DLPack, on the CPU or on a GPU. They are read in place if their last stride is one. Otherwise NumPy and torch arrays
    on the CPU are copied.

    score_mod(score, b, h, q_idx, kv_idx), mask_mod(b, h, q_idx, kv_idx) and weight_mod(b, h, q_idx, kv_idx) are
    functions, expressions, or text. A function is called once with expressions; arrays in its closure, its globals or
    its defaults are captured. For text, name the captures in `captures`.

    All other options have defaults:

    - captures and params: dicts of arrays and of numbers for the names that mods read. A new value of a param compiles
      nothing. clamp_reads: a read that may be outside its array gives the nearest element; by default it is refused.
    - scale: the factor of q k^T, by default 1 / sqrt(Dqk). sinks f32 [Hq] (f64 for f64 inputs): an extra logit in the
      softmax of each row, without a value.
    - normalizer: "softmax"; "none", o = sum(t w v) for scores t and weights w; "sigmoid", o = sum(w v / (1 + exp(-t))).
    - q_lengths and kv_lengths, i32 or i64 [B]: the number of valid queries and keys of each sequence. Rows of q past
      the end give o = 0, lse = -inf.
    - cu_seqlens_q and cu_seqlens_kv, i32 or i64 [N + 1]: a packed batch, N sequences one after the other in tensors of
      batch 1: the first row of each sequence, then the end of the last one.
    - q_start and kv_start, i32 or i64 [B]: numbers that are added to q_idx and to kv_idx.
    - page_table, i32 [B, max_pages]: k and v are pages [pages, Hkv, page_size, D], and sequence b has the pages
      page_table[b]. With page_starts, i32 [B + 1], page_table is a list [entries], and sequence b has its entries
      page_starts[b] to page_starts[b + 1].
    - max_q_len and max_kv_len: upper bounds of a sequence's queries and keys. A GPU needs them for packed batches.
    - prefix_group and prefix_len, i32 or i64 [B]: you promise that sequences of one group (0 or more; -1: none) begin
      with the same keys, up to the smaller of their prefix_len. A GPU may read these once (heddle.find_prefixes).
    - q_descale [B, Hq], k_descale and v_descale [B, Hkv], f32 (extents may be 1): factors of 8-bit tensors.
    - q_rest [B, Hq, Sq, R] and k_rest [B, Hkv, Skv, R]: the last columns of q and of k, as separate tensors.
    - block_mask: a heddle.BlockMask for this problem's sequences. Give the same mask as mask_mod, or no mask_mod.
    - fresh_tokens: you promise that all inputs were complete when the previous kernel on the stream began, except q and
      the last fresh_tokens keys and values of each sequence.
    - batch_invariant: the bits of a row do not depend on the other sequences of the batch. allow_tf32: a GPU may
      multiply f32 in tf32.
    - backend: "automatic" (where the arrays are), "cpu", "cuda", "amd", or "reference", which computes in float64.
    - threads of the CPU: 0, the default, means all cores. stream: the number of a GPU's stream, 0 by default.

    `tuning` chooses the kernel. "off": the planner's first choice. "recorded": the fastest kernel in an earlier
    measurement on this machine, if there is one. "measure": as "recorded", but measures now (up to some seconds) if
    there is none. "again": always measures. The default is HEDDLE_TUNING, else "recorded".

    Returns o [B, Hq, Sq, Dv], with return_lse (o, lse [B, Hq, Sq]); or writes into `out` and `lse`, and returns them.
    With `out`, it can also write each row's largest score into `max_scores`, an array like lse: -inf if no key attends,
    NaN if a score is NaN or +inf; sinks do not count. With `lse`, it can also write the rounding error of lse into
    `lse_rest`, an array like lse. Pass both to attention_backward, and gradients are right for scores of any size.

    Raises ValueError for wrong arguments, TypeError for an argument that is not an array, NotImplementedError for calls
    that this machine does not support, MemoryError, and RuntimeError for anything else. Then nothing was written.

    >>> import numpy as np, heddle
    >>> x = np.zeros((1, 1, 3, 4), np.float32); x[0, 0, :, 0] = [1, 2, 3]
    >>> heddle.attention(x, x, x, mask_mod=lambda b, h, q_idx, kv_idx: kv_idx == 0)[0, 0, :, 0]
    array([1., 1., 1.], dtype=float32)
    """
    refuse_unknown("attention", options, Options)
    try:
        arguments = given_arguments(options)
        try:
            return _attention(q, k, v, out, lse, return_lse, max_scores, lse_rest, arguments)
        except (TypeError, ValueError):
            copies = with_unit_rows(q, k, v)
            if not align_captures(arguments) and copies is None:
                raise
        q, k, v = copies or (q, k, v)
        return _attention(q, k, v, out, lse, return_lse, max_scores, lse_rest, arguments)
    except (TypeError, ValueError, AttributeError) as error:
        results = {"out": out, "lse": lse, "max_scores": max_scores, "lse_rest": lse_rest}
        refuse_wrong(attention, error, (q, k, v), {**results, "return_lse": return_lse, **options})
        raise


def _attention(
    q: Array, k: Array, v: Array, out: Array | None, lse: Array | None, return_lse: bool, max_scores: Array | None,
    lse_rest: Array | None, arguments: _core.Arguments,
) -> Any:
    if out is not None:
        try:
            _core.attention_into(q, k, v, out, lse, arguments, max_scores, lse_rest)
        except TypeError as error:
            refuse_arrays(error, {"out": out, "lse": lse, "max_scores": max_scores, "lse_rest": lse_rest},
                          {"q": q, "k": k, "v": v})
        return (out, lse) if return_lse else out
    if lse is not None:
        raise ValueError("lse is given without out; both are written, or neither")
    if max_scores is not None:
        raise ValueError("max_scores is given without out; both are written, or neither")
    if lse_rest is not None:
        raise ValueError("lse_rest is given without out; both are written, or neither")
    try:
        o, made = _core.attention(q, k, v, return_lse, arguments)
    except TypeError as error:
        refuse_arrays(error, {}, {"q": q, "k": k, "v": v})
    return (public(o), public(made)) if return_lse else public(o)
