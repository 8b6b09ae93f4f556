"""scaled_dot_product_attention and flex_attention of nested tensors in torch's jagged layout: packed sequences under another name."""

from __future__ import annotations

from typing import Any

import torch

from . import _forms
from ._call import Call
from ._inputs import PLAIN
from ._tf32 import allow_tf32_for
from ._results import heads_first
from ._varlen import attend_packed, set_keys, set_queries


def attention(query: Any, key: Any, value: Any, dropout_p: float, is_causal: bool, scale: float | None) -> torch.Tensor:
    """query [B, Hq, j, D], key and value [B, Hkv, j, D], whose third axis differs from sequence to sequence. Returns
    [B, Hq, j, Dv] with the query's lengths. Raises RuntimeError for other layouts, and for sequences with holes."""
    call = packed_call(query, key, value, scale)
    if dropout_p > 0.0:
        call.set_dropout(dropout_p)
    if is_causal:
        call.mask = _forms.CAUSAL
    result: torch.Tensor = attend_nested(call, query, value)
    return result


def packed_call(query: Any, key: Any, value: Any, scale: float | None) -> Call:
    if not torch.compiler.is_dynamo_compiling() and torch.compiler.is_exporting():  # Dynamo says that it exports, always
        raise NotImplementedError("torch.export of nested tensors: torch (2.11 to 2.15) exports no operation of theirs; varlen_attn of "
                                  "their values() and offsets() is exported")
    q, k, v = (rows_of(name, x) for name, x in (("query", query), ("key", key), ("value", value)))
    offsets, of_values = key.offsets(), value.offsets()
    is_read = not torch.compiler.is_dynamo_compiling() and type(offsets) in PLAIN and offsets.device.type == "cpu"
    if is_read and not offsets.equal(of_values):  # on a GPU this would wait
        raise RuntimeError("key and value are nested tensors of other lengths; equal lengths are accepted")
    starts, kv_starts = (x.offsets().to(torch.int32) for x in (query, key))
    call = Call(heads_first(q), k, v, None if scale is None else float(scale), allow_tf32=allow_tf32_for(q))
    set_queries(call, starts, longest(query))
    set_keys(call, k, v, kv_starts, longest(key), None, None, ("key's offsets", "pages"))
    return call


def attend_nested(call: Call, query: Any, value: Any) -> Any:
    """out [B, Hq, j, Dv] of a packed call, with an lse of the call (out, lse [B, Hq, j])."""
    made = attend_packed(call, rows_of("query", query), rows_of("value", value), None)
    if not call.with_lse:
        return with_lengths_of(query, made)
    return with_lengths_of(query, made[0]), with_lengths_of(query, made[1].transpose(0, 1))


def with_lengths_of(query: Any, rows: torch.Tensor) -> torch.Tensor:
    shortest = None if torch.compiler.is_dynamo_compiling() else known_shortest(query)  # Dynamo cannot trace it
    made: Any = torch.nested.nested_tensor_from_jagged(
        rows.contiguous(), offsets=query.offsets(), min_seqlen=shortest, max_seqlen=longest(query))
    result: torch.Tensor = made.transpose(1, 2)
    return result


def refuse_mixed(query: Any, key: Any, value: Any) -> None:
    """Raises RuntimeError unless all three are nested and jagged."""
    if not (query.is_nested and key.is_nested and value.is_nested):
        raise RuntimeError("query, key and value are nested tensors and others; all three nested, or none, are accepted")
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.layout != torch.jagged:
            raise RuntimeError(f"{name} is a nested tensor of {x.layout}; torch.jagged is accepted")


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
    if torch.compiler.is_dynamo_compiling() or hasattr(x, "_get_max_seqlen"):
        return int(x._get_max_seqlen())
    return int(x.offsets().diff().max())


def known_shortest(x: Any) -> int | None:
    """The least length of a sequence, None where torch keeps none."""
    return x._get_min_seqlen() if hasattr(x, "_get_min_seqlen") else None
