"""Attention in one call."""

from __future__ import annotations

from typing import Any, Unpack

from . import _core
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

    q [B, Hq, Sq, Dqk], k [B, Hkv, Skv, Dqk], v [B, Hkv, Skv, Dv]: arrays of NumPy or of anything that speaks DLPack, on
    the CPU or on a GPU, read in place if their last stride is one. Of others NumPy's
    and torch's on the CPU are copied.

    score_mod(score, b, h, q_idx, kv_idx), mask_mod(b, h, q_idx, kv_idx) and weight_mod(b, h, q_idx, kv_idx) are
    functions, expressions, or text. A function is called once with expressions; arrays that it reaches by its closure,
    its globals or its defaults are captured. Text names its captures in `captures`.

    A read of an array that may fall outside of it is refused, unless `clamp_reads`: then it gives the nearest element.

    `tuning` says which kernel is taken: "off" the planner's first; "recorded" the fastest one of an earlier measurement
    on this machine, if there is one; "measure" that one, measured now (up to some seconds) where there is none; "again"
    measured now. By default what HEDDLE_TUNING says, else "recorded".

    Returns o [B, Hq, Sq, Dv], with return_lse (o, lse [B, Hq, Sq]); or writes into `out` and `lse`, which it then
    returns. Beside `out` it writes each row's largest score into `max_scores`, an array like lse: -inf where nothing
    attends, NaN where a score is NaN or +inf; sinks do not count. Beside `lse` it writes what its rounding leaves
    out into `lse_rest`, an array like it. Gradients are right however large scores are if attention_backward gets both.

    Raises ValueError for arguments that are wrong, NotImplementedError for what this machine does not do, MemoryError,
    and RuntimeError for anything else; then nothing was written.

    >>> import numpy as np, heddle
    >>> x = np.zeros((1, 1, 3, 4), np.float32); x[0, 0, :, 0] = [1, 2, 3]
    >>> heddle.attention(x, x, x, mask_mod=lambda b, h, q_idx, kv_idx: kv_idx == 0)[0, 0, :, 0]
    array([1., 1., 1.], dtype=float32)
    """
    refuse_unknown("attention", options, Options)
    arguments = given_arguments(options)
    try:
        return _attention(q, k, v, out, lse, return_lse, max_scores, lse_rest, arguments)
    except ValueError:
        copies = with_unit_rows(q, k, v)
        if copies is None:
            raise
    q, k, v = copies
    return _attention(q, k, v, out, lse, return_lse, max_scores, lse_rest, arguments)


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
