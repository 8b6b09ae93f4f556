"""Calls straight to the library: repeated ones (core/direct_calls.cc), and packed sequences (core/packed_calls.cc)."""

from __future__ import annotations

from typing import Any

import torch

from .. import _core
from . import _forms, _private_names
from ._call import parsed, threads_of_torch
from ._inputs import refuse_others
from ._private_names import dispatch_modes, has_tangents, is_any_autocast, jit_trace, transforms
from ._results import (
    OutAndLse, empty_contiguous, empty_lse, empty_packed_lse, empty_packed_statistics, empty_statistics)
from ._tracing.kept import known_of
from ._tracing.recording import MASK, SCORE

KINDS = {"cpu": 1, "cuda": 2}  # DLPack's numbers


def stream_of(index: int) -> int | None:
    """torch's current stream of a GPU. None while a graph captures it."""
    return None if torch.cuda.is_current_stream_capturing() else _private_names.stream_of(index)


_calls = _core.DirectCalls(
    torch.Tensor, torch.nn.Parameter, torch.empty_like, empty_lse, empty_statistics, empty_contiguous,
    stream_of, threads_of_torch, (_private_names.strided_on_cpu, _private_names.strided_on_gpu), {device: known_of(SCORE, device) for device in KINDS},
    {device: known_of(MASK, device) for device in KINDS})


def window_of(*sides: str) -> Any:
    """A window that is bounded on these sides, as an expression."""
    text = _forms.window("window_left" in sides, "window_right" in sides)
    return parsed(text, (), tuple([(side, "i32") for side in sides]))


_packed_calls = _core.PackedCalls(
    torch.Tensor, torch.nn.Parameter, torch.empty_like, empty_packed_lse, empty_packed_statistics, stream_of, threads_of_torch,
    window_of("window_left"), window_of("window_right"), window_of("window_left", "window_right"))


def is_watched() -> bool:
    """Whether a mode, a transform, torch.jit.trace or autocast looks at what torch's functions get."""
    return bool(dispatch_modes() or transforms() is not None or is_any_autocast() or has_tangents() or jit_trace() is not None)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score: Any, mask: Any,
    settings: dict[str, Any], enable_gqa: bool, with_lse: bool, clamps: bool,
) -> OutAndLse | _core.RecordedCall | None:
    """(out, lse), if the call is one that was made before, on plain tensors; a RecordedCall if autograd has to record
    it. Else None, and nothing was done.

    `score` is a function or a BoundMod, `mask` a BoundMod or a ListedMask. `settings` are the call's options, by the
    names of Call's fields; a call with one that C++ does not take is left to Python.
    """
    if is_watched():
        return None
    try:
        made: OutAndLse | _core.RecordedCall | None = _calls.attend(
            query, key, value, score, mask, settings, enable_gqa, with_lse, clamps, torch.is_grad_enabled())
    except TypeError:
        refuse_others(query=query, key=key, value=value)
        raise
    return made


def attend_packed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts_q: torch.Tensor, starts_k: torch.Tensor | None,
    max_q: int, max_k: int, window: tuple[int, int], used: torch.Tensor | None, table: torch.Tensor | None,
    scale: float | None, out: torch.Tensor | None, enable_gqa: bool, with_lse: bool,
) -> OutAndLse | _core.RecordedCall | None:
    """(out, lse [H, T]) of packed queries, with the arguments of varlen_attn; a RecordedCall if autograd has to record
    it. Else None, and nothing was done: Python makes the call, or says what is wrong."""
    if type(window) not in (tuple, list) or len(window) != 2 or torch.compiler.is_dynamo_compiling() or is_watched():
        return None
    made: OutAndLse | _core.RecordedCall | None = _packed_calls.attend(
        query, key, value, starts_q, starts_k, max_q, max_k, *window, used, table, scale, out, enable_gqa, with_lse,
        torch.is_grad_enabled())
    return made


def bound(
    expr: _core.Expr, captures: dict[str, torch.Tensor], params: dict[str, Any], version: int = 0,
    scope: tuple[int, int, int, int] | None = None, device: torch.device | None = None,
) -> _core.BoundMod | None:
    """A mod for attend(). `scope`: batch, heads, queries and keys of a block mask, which is on `device`."""
    if scope is None or device is None:
        return _core.BoundMod(expr, captures, params, version)
    if device.type not in KINDS:
        return None
    return _core.BoundMod(expr, captures, params, version, (*scope, KINDS[device.type], device.index or 0))


def listed(
    lists: Any, mask_mod: Any, version: int, scope: tuple[int, int, int, int], device: torch.device,
    attributes: list[tuple[str, Any, int | None]],
) -> _core.ListedMask | None:
    """A block mask of lists, a heddle.BlockMask, for attend(). `attributes`: what torch's mask has now, and of tensors the
    versions; another mask is made when they change."""
    if device.type not in KINDS:
        return None
    return _core.ListedMask(lists, mask_mod, version, (*scope, KINDS[device.type], device.index or 0), attributes)
