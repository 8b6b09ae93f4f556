"""scaled_dot_product_attention of nested tensors in torch's jagged layout: packed sequences under another name."""

from __future__ import annotations

from typing import Any

import torch

from . import _forms
from ._call import Call
from ._tf32 import allow_tf32_for
from ._varlen import attend_packed, heads_first, set_keys, set_queries


def attention(query: Any, key: Any, value: Any, dropout_p: float, is_causal: bool, scale: float | None) -> torch.Tensor:
    """query [B, Hq, j, D], key and value [B, Hkv, j, D], whose third axis differs from sequence to sequence. Returns
    [B, Hq, j, Dv] with the query's lengths. Raises RuntimeError for other layouts, and for sequences with holes."""
    q, k, v = (rows_of(name, x) for name, x in (("query", query), ("key", key), ("value", value)))
    starts, kv_starts = (x.offsets().to(torch.int32) for x in (query, key))
    call = Call(heads_first(q), k, v, None if scale is None else float(scale),
                allow_tf32=allow_tf32_for(q))
    if dropout_p > 0.0:
        call.set_dropout(dropout_p)
    if is_causal:
        call.mask = _forms.CAUSAL
    set_queries(call, starts, longest(query))
    set_keys(call, k, v, kv_starts, longest(key), None, None, ("key's offsets", "pages"))
    out = attend_packed(call, q, v, None)
    made: Any = torch.nested.nested_tensor_from_jagged(
        out, offsets=query.offsets(), min_seqlen=query._get_min_seqlen(), max_seqlen=longest(query))
    result: torch.Tensor = made.transpose(1, 2)
    return result


def rows_of(name: str, x: Any) -> torch.Tensor:
    """[T, H, D]: the rows of all sequences."""
    if x.layout != torch.jagged or x.dim() != 4 or getattr(x, "_ragged_idx", 0) != 2:
        raise RuntimeError(f"{name} is a nested tensor of layout {x.layout} and {x.dim()} axes; torch.jagged and [batch, "
                           "heads, length, head_dim] are accepted, where lengths differ")
    if x.lengths() is not None:
        raise RuntimeError(f"{name} is a nested tensor with holes between its sequences; one without is accepted, such as "
                           "x.contiguous()")
    rows: torch.Tensor = x.transpose(1, 2).values()
    return rows


def longest(x: Any) -> int:
    return int(x._get_max_seqlen())
