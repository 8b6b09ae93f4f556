"""scaled_dot_product_attention, as torch has it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention.bias import CausalBias, CausalVariant

from .. import _core
from .._dtypes import dtype_name
from . import _direct, _forms, _nested
from ._call import Call
from ._dispatch import attend
from ._inputs import PLAIN, autocast, refuse_others
from ._named_tensors import names_arguments
from ._recorded import attend_again
from ._results import OutAndLse
from ._tf32 import allow_tf32_for


@names_arguments
def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention, with all of its arguments.

    - query (N, ..., Hq, L, E), key (N, ..., H, S, E) and value (N, ..., H, S, Ev) have 2 to 6 axes and one floating
      type. Batch axes broadcast. H is Hq, or with enable_gqa a divisor of Hq.
    - attn_mask broadcasts to (N, ..., Hq, L, S). It is bool (True takes part), floating (added), or a CausalBias.
    - is_causal aligns the first query with the first key. scale: by default 1 / sqrt(E).
    - dropout_p: the seed comes from torch's default generator of the query's device.
    - All three may be nested tensors [B, H, j, E] of torch's jagged layout, without an attn_mask.

    Returns (N, ..., Hq, L, Ev). Rows without a key give 0.

    Raises RuntimeError for types, devices and shapes that torch refuses, and ValueError for dropout_p outside of
    [0, 1].

    Autograd computes gradients of query, key, value and a floating attn_mask.

    >>> import torch, heddle.torch
    >>> q = torch.randn(2, 4, 16, 8)
    >>> heddle.torch.scaled_dot_product_attention(q, q, q, is_causal=True).shape
    torch.Size([2, 4, 16, 8])
    """
    try:
        is_nested = query.is_nested or key.is_nested or value.is_nested
    except AttributeError:
        refuse_others(query=query, key=key, value=value)
        raise
    if is_nested:
        query, key, value = autocast(query, key, value)
        return of_nested(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    settings: dict[str, Any] = {"scale": scale, "allow_tf32": allow_tf32_for(query)}
    if not torch.compiler.is_dynamo_compiling() and dropout_p == 0.0:
        made = repeated(query, key, value, attn_mask, is_causal, settings, enable_gqa)
        if made is not None:
            return made[0]
    refuse_others(query=query, key=key, value=value)
    query, key, value = autocast(query, key, value)
    call = Call(query, key, value, **settings)
    call.scale = None if scale is None else float(scale)
    check(call, attn_mask, dropout_p, is_causal)
    if dropout_p > 0.0:
        call.set_dropout(dropout_p)
    if is_causal:
        call.mask = _forms.CAUSAL
    elif isinstance(attn_mask, CausalBias):
        lengths = attn_mask.seq_len_q, attn_mask.seq_len_kv
        if attn_mask.variant == CausalVariant.UPPER_LEFT or lengths[0] == lengths[1]:  # torch: of any lengths
            call.mask = _forms.CAUSAL
        else:
            check_extents(lengths, (query.shape[-2], key.shape[-2]))
            call.mask = _forms.CAUSAL_LOWER_RIGHT
        attn_mask = None
    if enable_gqa:
        call.key, call.value = key, value = with_equal_heads(query, key, value)
    same_batch = query.dim() == key.dim() == value.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0]
    if same_batch and (enable_gqa or query.shape[1] == key.shape[1] == value.shape[1]):
        check_heads(call, enable_gqa)
        if attn_mask is not None:
            check_extents(attn_mask.shape, (*query.shape[:3], key.shape[2]))
            set_mask(call, attn_mask)
        return attend(call)[0]
    return of_any_rank(call, attn_mask, enable_gqa)


def of_nested(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any, dropout_p: float, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> torch.Tensor:
    _nested.refuse_mixed(query, key, value)
    if attn_mask is not None:
        raise RuntimeError("attn_mask is given beside nested tensors; is_causal is accepted there")
    call = Call(query, key, value)
    check(call, attn_mask, dropout_p, is_causal)
    check_heads(call, enable_gqa)
    return _nested.attention(query, key, value, dropout_p, is_causal, scale)


def repeated(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any, is_causal: bool,
    settings: dict[str, Any], enable_gqa: bool,
) -> OutAndLse | None:
    """The call without the checks, if it is plainly right. Else None."""
    score = None
    if is_causal is not True and is_causal is not False:
        return None
    if attn_mask is not None:
        score = None if is_causal else dense_score(query, key, attn_mask)
        if score is None:
            return None
    mask = causal() if is_causal else None
    return attend_again(query, key, value, score, mask, settings, enable_gqa, False, False)


@functools.cache
def causal() -> Any:
    return _direct.bound(_core.parse(_forms.CAUSAL, {}, {}), {}, {})


@functools.cache
def dense_expression(dtype: torch.dtype, broadcast: tuple[bool, ...]) -> _core.Expr:
    text = _forms.tensor_mask(dtype == torch.bool, broadcast)
    return _core.parse(text, {"attn_mask": (dtype_name(torch.empty(0, dtype=dtype)), 4)}, {})


def dense_score(query: torch.Tensor, key: torch.Tensor, attn_mask: torch.Tensor) -> Any:
    """The score under a dense mask of 4 axes. None for others, and for those that do not fit or have odd types."""
    if type(attn_mask) not in PLAIN or attn_mask.dim() != 4 or query.dim() != 4 or key.dim() != 4:
        return None
    mask, scores = attn_mask.shape, query.shape
    broadcast = mask[0] == 1, mask[1] == 1, mask[2] == 1, mask[3] == 1
    if not ((broadcast[0] or mask[0] == scores[0]) and (broadcast[1] or mask[1] == scores[1])
            and (broadcast[2] or mask[2] == scores[2]) and (broadcast[3] or mask[3] == key.shape[2])):
        return None
    dtype = attn_mask.dtype
    if dtype != torch.bool and not dtype.is_floating_point:
        return None
    return _direct.bound(dense_expression(dtype, broadcast), {"attn_mask": attn_mask}, {})


def check(call: Call, attn_mask: torch.Tensor | None, dropout_p: float, is_causal: bool) -> None:
    """Raises what torch's scaled_dot_product_attention raises."""
    query, key, value = call.query, call.key, call.value
    if attn_mask is not None and not isinstance(attn_mask, torch.Tensor):
        raise TypeError(f"attn_mask is {type(attn_mask).__name__}; a tensor and None are accepted")
    if not isinstance(is_causal, (bool, torch.SymBool)):
        raise TypeError(f"is_causal is {type(is_causal).__name__}; a bool is accepted")
    if is_causal and attn_mask is not None:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
    if query.dtype != key.dtype or query.dtype != value.dtype:
        raise RuntimeError("Expected query, key, and value to have the same dtype, but got query.dtype: "
                           f"{query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead.")
    if not (query.device == key.device == value.device):
        raise RuntimeError("Expected query, key, and value to have the same device type, but got query.device: "
                           f"{query.device} key.device: {key.device} and value.device: {value.device} instead.")
    if not 2 <= query.dim() <= 6 or key.dim() < 2 or value.dim() < 2:
        raise RuntimeError("Expected query, key, and value to all be at least 2 dimensional, but got query.dim: "
                           f"{query.dim()}, key.dim: {key.dim()} and value.dim: {value.dim()} instead.")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p is {dropout_p}; 0 to 1 is accepted")
    if query.shape[-1] != key.shape[-1]:
        raise RuntimeError(f"query has {query.shape[-1]} elements in a row and key {key.shape[-1]}; equal "
                           "numbers are accepted")


def with_equal_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value, with one head a query head if they have different numbers of heads, each a divisor of the query's."""
    if min(query.dim(), key.dim(), value.dim()) < 3 or key.shape[-3] == value.shape[-3]:
        return key, value
    heads = query.shape[-3]
    if any(x.shape[-3] == 0 or heads % x.shape[-3] for x in (key, value)):
        return key, value
    return key.repeat_interleave(heads // key.shape[-3], -3), value.repeat_interleave(heads // value.shape[-3], -3)


def check_heads(call: Call, enable_gqa: bool) -> None:
    """Raises RuntimeError for numbers of heads that do not fit; the call has 4 axes."""
    heads, kv_heads, v_heads = call.query.shape[1], call.key.shape[1], call.value.shape[1]
    if v_heads != kv_heads or heads != kv_heads and (not enable_gqa or kv_heads == 0 or heads % kv_heads):
        raise RuntimeError(f"query, key and value have {heads}, {kv_heads} and {v_heads} heads; equal ones are "
                           "accepted, or with enable_gqa a divisor of the query's")


def check_extents(mask: Sequence[int], scores: Sequence[int], name: str = "attn_mask") -> None:
    """Raises RuntimeError if a mask does not broadcast to the scores. Larger ones are refused, as torch does."""
    missing = len(scores) - len(mask)
    if missing < 0 or any(extent != 1 and extent != wanted for extent, wanted in zip(mask, scores[missing:])):
        raise RuntimeError(f"{name} has shape {tuple(mask)}; shapes that broadcast to {tuple(scores)} are accepted")


def set_mask(call: Call, attn_mask: torch.Tensor) -> None:
    if attn_mask.dim() < 4:
        attn_mask = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape))
    if attn_mask.dtype != torch.bool and not attn_mask.dtype.is_floating_point:
        raise RuntimeError(f"attn_mask is {attn_mask.dtype}; bool and floating types are accepted")
    call.score = _forms.tensor_mask(attn_mask.dtype == torch.bool, tuple(extent == 1 for extent in attn_mask.shape))
    call.captures["attn_mask"] = attn_mask


def of_any_rank(call: Call, attn_mask: torch.Tensor | None, enable_gqa: bool) -> torch.Tensor:
    """Inputs of 2 to 6 axes. Axes before the heads broadcast and become one; heads broadcast without enable_gqa."""
    query, key, value = tensors = call.query, call.key, call.value
    kept = 3 if enable_gqa and min(x.dim() for x in tensors) > 2 else 2
    try:
        batch = torch.broadcast_shapes(*(x.shape[:-kept] for x in tensors))  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise RuntimeError(f"query, key and value have shapes {', '.join(str(tuple(x.shape)) for x in tensors)}; axes before "
                           "the rows that broadcast are accepted") from None

    def flat(x: torch.Tensor) -> torch.Tensor:
        x = x.expand(*batch, *x.shape[-kept:])
        return x.reshape(entries, x.shape[-3] if x.dim() > 2 else 1, *x.shape[-2:])

    lead = (*batch, *query.shape[-kept:-2])
    entries = math.prod(lead[:-1])  # reshape cannot find it where a tensor is empty
    call.query, call.key, call.value = flat(query), flat(key), flat(value)
    check_heads(call, enable_gqa)
    if attn_mask is not None:
        check_extents(attn_mask.shape, (*lead, query.shape[-2], key.shape[-2]))
        if len(lead) > 2 or attn_mask.dim() != len(lead) + 2:  # else its axes of extent 1 are read as such
            attn_mask = attn_mask.expand(*lead, query.shape[-2], key.shape[-2])
        set_mask(call, attn_mask.reshape(entries, *attn_mask.shape[-3:]) if len(lead) > 2 else attn_mask)
    out, _ = attend(call)
    return out.reshape(*lead, *out.shape[-2:])
