"""Fused attention with your own score, mask and weight functions.

>>> import numpy as np, heddle
>>> q = k = v = np.ones((1, 2, 4, 8), np.float32)
>>> slopes = np.array([0.5, 0.25], np.float32)
>>> o = heddle.attention(q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx))
>>> o.shape
(1, 2, 4, 8)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import _core
from ._core import (
    Capture,
    Expr,
    abs,
    atan,
    ceil,
    clear_plan_cache,
    clip,
    cos,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    gelu,
    gelu_tanh,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    maximum,
    minimum,
    plan_cache_counts,
    power,
    random_uniform,
    relu,
    round,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    softplus,
    sqrt,
    tan,
    tanh,
    to_f32,
    to_i32,
    trunc,
    where,
)
from ._trace import MASK_ARGUMENTS, SCORE_ARGUMENTS, Traced

__version__: str = _core.version()

__all__ = [
    "Capture", "Expr", "abs", "atan", "attention", "ceil", "clear_plan_cache", "clip", "cos", "erf", "exp", "exp2",
    "expm1", "floor", "gelu", "gelu_tanh", "isinf", "isnan", "log", "log1p", "log2", "maximum", "minimum",
    "plan_cache_counts", "power", "random_uniform", "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin",
    "softplus", "sqrt", "tan", "tanh", "to_f32", "to_i32", "trunc", "where",
]

Mod = Callable[..., Any] | str | Expr | None


def _arguments(
    score_mod: Mod, mask_mod: Mod, weight_mod: Mod, captures: Mapping[str, Any] | None,
    params: Mapping[str, float | int | bool] | None, options: Mapping[str, Any],
) -> Any:
    arguments = _core.Arguments()
    if score_mod is not None or mask_mod is not None or weight_mod is not None:
        traced = Traced(captures)
        if score_mod is not None:
            arguments.score_mod = traced.of(score_mod, SCORE_ARGUMENTS)
        if mask_mod is not None:
            arguments.mask_mod = traced.of(mask_mod, MASK_ARGUMENTS)
        if weight_mod is not None:
            arguments.weight_mod = traced.of(weight_mod, MASK_ARGUMENTS)
        arguments.captures = traced.captures
    if params:
        arguments.params = dict(params)
    for name, value in options.items():
        if value is not None:
            setattr(arguments, name, value)
    return arguments


def attention(
    q: Any, k: Any, v: Any, *, score_mod: Mod = None, mask_mod: Mod = None, weight_mod: Mod = None,
    captures: Mapping[str, Any] | None = None, params: Mapping[str, float | int | bool] | None = None,
    scale: float | None = None, out: Any = None, lse: Any = None, return_lse: bool = False, sinks: Any = None,
    q_lengths: Any = None, kv_lengths: Any = None, cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None,
    page_table: Any = None, q_start: Any = None, kv_start: Any = None, max_q_len: int | None = None,
    max_kv_len: int | None = None, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
    normalizer: str | None = None, backend: str | None = None, threads: int | None = None, stream: int | None = None,
    clamp_reads: bool | None = None,
) -> Any:
    """``softmax(mod(scale * q k^T)) v``.

    q [B, Hq, Sq, Dqk], k [B, Hkv, Skv, Dqk], v [B, Hkv, Skv, Dv]: arrays of NumPy or of anything that speaks DLPack, on
    the CPU or on a GPU, read in place. Any strides with a unit last one.

    score_mod(score, b, h, q_idx, kv_idx), mask_mod(b, h, q_idx, kv_idx) and weight_mod(b, h, q_idx, kv_idx) are
    functions, expressions, or text. A function is called once with expressions; arrays that it reaches by its closure,
    its globals or its defaults are captured. Text names its captures in `captures`.

    An array may be read at indices that are inside it wherever the read counts; others are refused. With clamp_reads
    they give the nearest element.

    Returns o [B, Hq, Sq, Dv], with return_lse (o, lse [B, Hq, Sq]); or writes into `out` and `lse`, which it then
    returns. Raises ValueError for arguments that are wrong, NotImplementedError for what this machine does not do,
    MemoryError, and RuntimeError for anything else; then nothing was written.

    >>> import numpy as np, heddle
    >>> x = np.zeros((1, 1, 3, 4), np.float32); x[0, 0, :, 0] = [1, 2, 3]
    >>> heddle.attention(x, x, x, mask_mod=lambda b, h, q_idx, kv_idx: kv_idx == 0)[0, 0, :, 0]
    array([1., 1., 1.], dtype=float32)
    """
    options = {
        "scale": scale, "sinks": sinks, "q_lengths": q_lengths, "kv_lengths": kv_lengths,
        "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv, "page_table": page_table, "q_start": q_start,
        "kv_start": kv_start, "max_q_len": max_q_len, "max_kv_len": max_kv_len, "q_descale": q_descale,
        "k_descale": k_descale, "v_descale": v_descale, "normalizer": normalizer, "backend": backend,
        "threads": threads, "stream": stream, "clamp_reads": clamp_reads,
    }
    arguments = _arguments(score_mod, mask_mod, weight_mod, captures, params, options)
    if out is not None:
        _core.attention_into(q, k, v, out, lse, arguments)
        return (out, lse) if return_lse else out
    if lse is not None:
        raise ValueError("lse is given without out; both are written, or neither")
    o, made = _core.attention(q, k, v, return_lse, arguments)
    return (o, made) if return_lse else o
