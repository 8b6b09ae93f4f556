"""Attention in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _core
from ._block_mask import BlockMask
from ._options import arguments_of, refuse_arrays
from ._tensor import public
from ._types import Array, ModLike, ParamValue


def attention(
    q: Array, k: Array, v: Array, *, score_mod: ModLike = None, mask_mod: ModLike = None, weight_mod: ModLike = None,
    captures: Mapping[str, Array] | None = None, params: Mapping[str, ParamValue] | None = None,
    scale: float | None = None, out: Array | None = None, lse: Array | None = None, return_lse: bool = False,
    max_scores: Array | None = None, lse_rest: Array | None = None, sinks: Array | None = None,
    q_lengths: Array | None = None, kv_lengths: Array | None = None, cu_seqlens_q: Array | None = None,
    cu_seqlens_kv: Array | None = None,
    page_table: Array | None = None, q_start: Array | None = None, kv_start: Array | None = None,
    max_q_len: int | None = None, max_kv_len: int | None = None, q_descale: Array | None = None,
    k_descale: Array | None = None, v_descale: Array | None = None, normalizer: str | None = None,
    block_mask: BlockMask | None = None, backend: str | None = None, threads: int | None = None,
    stream: int | None = None, clamp_reads: bool | None = None, tuning: str | None = None,
) -> Any:
    """``softmax(mod(scale * q k^T)) v``.

    q [B, Hq, Sq, Dqk], k [B, Hkv, Skv, Dqk], v [B, Hkv, Skv, Dv]: arrays of NumPy or of anything that speaks DLPack, on
    the CPU or on a GPU, read in place. Any strides with a unit last one.

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
    options = {
        "scale": scale, "sinks": sinks, "q_lengths": q_lengths, "kv_lengths": kv_lengths,
        "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv, "page_table": page_table, "q_start": q_start,
        "kv_start": kv_start, "max_q_len": max_q_len, "max_kv_len": max_kv_len, "q_descale": q_descale,
        "k_descale": k_descale, "v_descale": v_descale, "normalizer": normalizer, "block_mask": block_mask,
        "backend": backend, "threads": threads, "stream": stream, "clamp_reads": clamp_reads,
        "tuning": tuning,
    }
    arguments = arguments_of(score_mod, mask_mod, weight_mod, captures, params, options)
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
