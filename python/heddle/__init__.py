"""Fused attention with your own score, mask and weight functions.

>>> import numpy as np, heddle
>>> q = k = v = np.ones((1, 2, 4, 8), np.float32)
>>> slopes = np.array([0.5, 0.25], np.float32)
>>> o = heddle.attention(q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx))
>>> o.shape
(1, 2, 4, 8)
"""

from __future__ import annotations

from . import _core, mods
from ._core import (
    Capture,
    CheckReport,
    DeviceInfo,
    Expr,
    GradientReport,
    TensorCheck,
    abs,
    atan,
    ceil,
    clear_plan_cache,
    clip,
    cos,
    erf,
    erfc,
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
    param,
    plan_cache_counts,
    power,
    random_uniform,
    relu,
    round,
    rsqrt,
    set_trace_always,
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
    traces_always,
    trunc,
    where,
)
from ._archive import use_archive
from ._attention import attention
from ._backward import Gradients, attention_backward, check_backward, explain_backward
from ._backward_plan import BackwardPlan
from ._block_mask import BlockMask, Lists, Run, Sequence
from ._check import check, devices, merge_states, missing
from ._config import Config, config
from ._events import kernel_counts, set_event_listener
from ._files import TensorFile, load, save
from ._kv_cache import append_kv, find_prefixes
from ._plan import AttentionPlan, Explanation, explain, explain_on
from ._progress import progress
from ._tensor import Tensor
from ._types import Array

__version__: str = _core.version()

__all__ = [
    "Array", "AttentionPlan", "BackwardPlan", "BlockMask", "Capture", "CheckReport", "Config", "DeviceInfo", "Explanation",
    "Expr", "GradientReport", "Gradients", "Lists", "Run", "Sequence", "Tensor", "TensorCheck", "TensorFile", "abs",
    "append_kv", "atan", "attention", "attention_backward", "ceil", "check", "check_backward", "clear_plan_cache", "clip", "config",
    "cos",
    "devices", "erf", "erfc", "exp", "exp2", "explain", "explain_backward", "explain_on", "expm1", "find_prefixes",
    "floor", "gelu",
    "gelu_tanh", "isinf", "isnan", "kernel_counts", "load", "log", "log1p", "log2", "maximum", "merge_states", "minimum", "missing",
    "mods", "param", "plan_cache_counts", "power", "progress", "random_uniform", "relu", "round", "rsqrt", "save",
    "set_event_listener", "set_trace_always", "sigmoid", "sign", "silu", "sin", "softplus", "sqrt", "tan", "tanh", "to_f32", "to_i32",
    "traces_always", "trunc", "use_archive", "where",
]
