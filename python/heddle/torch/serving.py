"""Attention of serving engines, in the shape of flash-attention's functions: packed batches and KV caches.

Lengths, page tables and caches stay on the device, and each run reads them there, so that a CUDA graph serves all
lengths up to the maxima.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _forms
from ._call import Call
from ._dispatch import attend
from ._tracing.kept import Mods
from ._varlen import attend_packed, heads_first, set_keys, set_queries, set_window, target

Descale = torch.Tensor | None


def _set_options(
    call: Call, causal: bool, window_size: tuple[int, int], softcap: float, sinks: torch.Tensor | None,
    descales: tuple[Descale, Descale, Descale], score_mod: Callable[..., torch.Tensor] | None,
    mask_mod: Callable[..., torch.Tensor] | None,
) -> None:
    """Raises ValueError for mask_mod beside a window, and for score_mod beside softcap."""
    window = (window_size[0], 0) if causal else window_size
    if mask_mod is not None or score_mod is not None:
        mods = Mods(call.query.device)
        if mask_mod is not None:
            if tuple(window) != (-1, -1):
                raise ValueError("mask_mod is given beside causal or window_size; write them into mask_mod")
            call.mask = mods.mask(mask_mod)
        if score_mod is not None:
            if softcap:
                raise ValueError("score_mod is given beside softcap; write it into score_mod")
            call.score = mods.score(score_mod)
        call.captures, call.params, call.clamps = mods.captures, mods.params, True
    if mask_mod is None:
        set_window(call, window)
    if softcap and score_mod is None:
        call.score = _forms.softcap(float(softcap))
    if sinks is not None:
        call.options["sinks"] = sinks.to(torch.float64 if call.query.dtype == torch.float64 else torch.float32)
    for name, descale in zip(("q_descale", "k_descale", "v_descale"), descales):
        if descale is not None:
            call.options[name] = descale


def varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int, max_seqlen_k: int, *, seqused_k: torch.Tensor | None = None, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    sinks: torch.Tensor | None = None, page_table: torch.Tensor | None = None, q_descale: Descale = None,
    k_descale: Descale = None, v_descale: Descale = None, score_mod: Callable[..., torch.Tensor] | None = None,
    mask_mod: Callable[..., torch.Tensor] | None = None, out: torch.Tensor | None = None,
    return_softmax_lse: bool = False, version: int = 0,
) -> Any:
    """Attention of packed queries q [T, Hq, D] over packed keys or a paged cache.

    - Packed keys: k and v [Tk, Hkv, D], with cu_seqlens_k. With seqused_k i32 [B] only so many keys of each sequence
      count; the rows behind them are not seen.
    - A paged cache: k and v [pages, page, Hkv, D], with page_table i32 [B, n] and seqused_k i32 [B].
    - cu_seqlens_q and cu_seqlens_k, i32 [B + 1]: where sequences begin. max_seqlen_q and max_seqlen_k are at least the
      longest sequence's queries and keys; larger bounds change no result.
    - causal and window_size (left, right; -1 without bound) align a sequence's last query with its last key.
    - sinks [Hq]. q_descale, k_descale and v_descale [B, H], for 8-bit tensors.
    - score_mod and mask_mod are torch functions as in flex_attention. `version`: see with_kvcache.

    Returns out [T, Hq, Dv] (the given `out`, if any); with return_softmax_lse (out, lse [Hq, T]).

    Raises ValueError for mask_mod beside causal or window_size, for score_mod beside softcap, for a page_table without
    seqused_k, and unless one of cu_seqlens_k and page_table is given.

    >>> import torch, heddle.torch.serving as serving
    >>> q, starts = torch.randn(7, 2, 8), torch.tensor([0, 3, 7], dtype=torch.int32)
    >>> serving.varlen_func(q, q, q, starts, starts, 4, 4, causal=True).shape
    torch.Size([7, 2, 8])
    """
    call = Call(heads_first(q), k, v, softmax_scale, with_lse=return_softmax_lse, version=version)
    _set_options(call, causal, window_size, softcap, sinks, (q_descale, k_descale, v_descale), score_mod, mask_mod)
    set_queries(call, cu_seqlens_q, max_seqlen_q)
    set_keys(call, k, v, cu_seqlens_k, max_seqlen_k, seqused_k, page_table, ("cu_seqlens_k", "page_table"))
    return attend_packed(call, q, v, out)


def with_kvcache(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor | None = None,
    v: torch.Tensor | None = None, *, cache_seqlens: torch.Tensor | int, page_table: torch.Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0, sinks: torch.Tensor | None = None, q_descale: Descale = None, k_descale: Descale = None,
    v_descale: Descale = None, score_mod: Callable[..., torch.Tensor] | None = None,
    mask_mod: Callable[..., torch.Tensor] | None = None, out: torch.Tensor | None = None,
    return_softmax_lse: bool = False, version: int = 0,
) -> Any:
    """Attention of q [B, L, Hq, D] over a KV cache, to which new rows are appended first.

    - k_cache and v_cache [B, S, Hkv, D]; with page_table i32 [B, n] pages [pages, page, Hkv, D].
    - cache_seqlens, i32 [B] or one int: how many keys of the cache count.
    - k and v [B, n, Hkv, D]: written in place behind these keys. Then cache_seqlens + n keys count.
    - causal and window_size (left, right; -1 without bound) align a sequence's last query with its last key.
    - sinks [Hq]. q_descale, k_descale and v_descale [B, H], for 8-bit tensors.
    - score_mod and mask_mod are torch functions as in flex_attention.
    - `version`: give another one if the content of a tensor that mask_mod reads has changed in place.

    Returns out [B, L, Hq, Dv] (the given `out`, if any); with return_softmax_lse (out, lse [B, Hq, L]).

    Raises ValueError if one of k and v is given without the other, on a CPU if the cache has no room for them
    or page_table no page, for mask_mod beside causal or window_size, and for score_mod beside softcap.

    >>> import torch, heddle.torch.serving as serving
    >>> cache = torch.zeros(2, 16, 1, 8); lengths = torch.tensor([3, 5], dtype=torch.int32)
    >>> new = torch.ones(2, 1, 1, 8)
    >>> serving.with_kvcache(new, cache, cache, new, new, cache_seqlens=lengths, causal=True).shape
    torch.Size([2, 1, 1, 8])
    >>> cache[0, 3, 0, 0], cache[1, 5, 0, 0]
    (tensor(1.), tensor(1.))
    """
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)
    if (k is None) != (v is None):
        raise ValueError("one of k and v is given; both are appended, or none")
    if k is not None and v is not None:
        append(k_cache, v_cache, k, v, cache_seqlens, page_table)
        cache_seqlens = cache_seqlens + k.shape[1]
    call = Call(q.transpose(1, 2), k_cache.transpose(1, 2), v_cache.transpose(1, 2), softmax_scale,
                with_lse=return_softmax_lse, version=version)
    _set_options(call, causal, window_size, softcap, sinks, (q_descale, k_descale, v_descale), score_mod, mask_mod)
    call.options["kv_lengths"] = cache_seqlens
    if page_table is not None:
        call.options["page_table"] = page_table
    call.out = target(out, q, v_cache)
    result, lse = attend(call)
    if out is None:
        out = result.transpose(1, 2)
    return (out, lse) if lse is not None else out


def append(
    k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor,
    page_table: torch.Tensor | None = None,
) -> None:
    """Writes k and v [B, n, Hkv, D] into the caches, behind the `lengths` [B] keys of each sequence, on the device.

    Rows past the cache's end, and pages that are not there, such as -1: ValueError on a CPU. On a GPU, where checking
    would wait, rows past the end overwrite the last row, and such a page is torch's asynchronous error.
    """
    rows = k.shape[1]
    position = lengths.long().unsqueeze(1) + torch.arange(rows, device=lengths.device)
    page = k_cache.shape[1]
    room = page if page_table is None else page * page_table.shape[1]
    on_cpu = lengths.device.type == "cpu"
    if on_cpu:
        check_room(position, rows, room)
    else:
        position = position.clamp(max=room - 1)
    if page_table is None:
        entry = torch.arange(k.shape[0], device=k.device).unsqueeze(1).expand_as(position)
        row = position
    else:
        entry = page_table.long().gather(1, position // page)
        if on_cpu:
            check_pages(entry, k_cache.shape[0])
        entry = torch.where(entry < 0, k_cache.shape[0], entry)  # not from the end: the assignment's error
        row = position % page
    k_cache[entry, row] = k.to(k_cache.dtype)
    v_cache[entry, row] = v.to(v_cache.dtype)


def check_room(position: torch.Tensor, rows: int, room: int) -> None:
    """Raises ValueError for rows that do not stand in the cache."""
    if not position.numel():
        return
    least, most = int(position.min()), int(position.max())
    if least < 0:
        raise ValueError(f"cache_seqlens has {least}; lengths of 0 and more are accepted")
    if most >= room:
        raise ValueError(f"the cache of {room} rows has no room for {rows} rows behind {most + 1 - rows}")


def check_pages(entry: torch.Tensor, pages: int) -> None:
    """Raises ValueError for new rows in a page that is not there."""
    wrong = entry[(entry < 0) | (entry >= pages)]
    if wrong.numel():
        raise ValueError(f"page_table has {int(wrong[0])} where new rows are written; pages from 0 to {pages - 1} are "
                         "accepted")
