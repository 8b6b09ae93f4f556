"""New tensors for what a call computes: their shapes, strides and types."""

from __future__ import annotations

import torch

from ._private_names import strided_on_cpu

OutAndLse = tuple[torch.Tensor, torch.Tensor | None]  # lse if the call has it


def heads_first(rows: torch.Tensor) -> torch.Tensor:
    """[1, H, T, D] of packed rows [T, H, D]."""
    return rows.unsqueeze(0).transpose(1, 2)


def out_dtype(query: torch.Tensor) -> torch.dtype:
    return torch.bfloat16 if query.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else query.dtype


def empty_out(query: torch.Tensor, last: int) -> torch.Tensor:
    """[B, Hq, L, last], its axes in the order of the query's strides, the last one contiguous."""
    if last == query.shape[3] and query.stride(3) == 1:
        return torch.empty_like(query, dtype=out_dtype(query))
    return ordered_out(query, last)


def ordered_out(query: torch.Tensor, last: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """empty_out() where expanded axes of the query, whose stride is 0, come last: flex_attention's result."""
    shape, strides, step, given = (*query.shape[:3], last), [0, 0, 0, 1], last, query.stride()
    for axis in reversed(sorted(range(3), key=lambda axis: -given[axis])):
        strides[axis] = step
        step = step * shape[axis]
    return query.new_empty_strided(shape, strides, dtype=out_dtype(query) if dtype is None else dtype)


def statistics(query: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """A new tensor of lse's type, beside which no mode watches (_direct.is_watched)."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    if strided_on_cpu is not None and query.is_cpu:
        made: torch.Tensor = strided_on_cpu(shape, strides, dtype)
        return made
    return torch.empty(shape, dtype=dtype, device=query.device)


def empty_lse(query: torch.Tensor) -> torch.Tensor:
    """[B, Hq, L], f64 for a query of f64, else f32."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    batch, heads, length, _ = query.shape
    return torch.empty(batch, heads, length, dtype=dtype, device=query.device)


def empty_packed_lse(query: torch.Tensor) -> torch.Tensor:
    """[H, T] for packed queries [T, H, D], f64 for those of f64, else f32."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return torch.empty(query.shape[1], query.shape[0], dtype=dtype, device=query.device)


def empty_packed_statistics(query: torch.Tensor) -> torch.Tensor:
    """[2, H, T] for packed queries [T, H, D]: empty_statistics() of theirs."""
    length, heads, _ = query.shape
    return statistics(query, (2, heads, length), (heads * length, length, 1))


def empty_statistics(query: torch.Tensor) -> torch.Tensor:
    """[2, B, Hq, L], of the type of lse: for lse and for what its rounding leaves out."""
    batch, heads, length, _ = query.shape
    rows = heads * length
    return statistics(query, (2, batch, heads, length), (batch * rows, rows, length, 1))


def empty_contiguous(x: torch.Tensor) -> torch.Tensor:
    """A new tensor of x's shape, type and device."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
