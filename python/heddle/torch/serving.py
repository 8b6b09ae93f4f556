"""Attention for serving engines, with the interface of flash-attention: packed batches and KV caches.

Lengths, page tables and caches stay on the device, and each run reads them there, so that a CUDA graph serves all
lengths up to the maxima.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from . import _forms
from ._append import Rotary, append_for_autograd, append_rows
from ._call import Call
from ._dispatch import attend
from ._inputs import is_plain
from ._named_tensors import named_as, require_axes, require_counts
from ._recorded import attend_packed_again
from ._results import heads_first
from ._tracing.kept import Mods
from ._varlen import attend_packed, finished, set_keys, set_queries, set_window, target
from ._written import has_written, refuse_learned

__all__ = ["append", "varlen_func", "with_kvcache"]

Descale = torch.Tensor | None


def _set_options(
    call: Call, causal: bool, window_size: tuple[int, int], softcap: float, sinks: torch.Tensor | None,
    descales: tuple[Descale, Descale, Descale], score_mod: Callable[..., torch.Tensor] | None,
    mask_mod: Callable[..., torch.Tensor] | None, shift: str = _forms.SHIFT,
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
        set_window(call, window, shift)
    if not 0.0 <= softcap < float("inf"):
        raise ValueError(f"softcap is {softcap}; finite numbers from 0 (none) on are accepted")
    if softcap and score_mod is None:
        call.score = _forms.softcap(float(softcap))
    if sinks is not None:
        if sinks.is_complex():
            raise ValueError(f"sinks is {sinks.dtype}; floating types are accepted")
        call.options["sinks"] = sinks.to(torch.float64 if call.query.dtype == torch.float64 else torch.float32)
    for name, descale in zip(("q_descale", "k_descale", "v_descale"), descales):
        if descale is not None:
            call.options[name] = descale


@named_as(kv_lengths="seqused_k", max_q_len="max_seqlen_q", max_kv_len="max_seqlen_k", cu_seqlens_kv="cu_seqlens_k",
          scale="softmax_scale")
def varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int, max_seqlen_k: int, *, seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    sinks: torch.Tensor | None = None, page_table: torch.Tensor | None = None,
    page_starts: torch.Tensor | None = None, q_descale: Descale = None,
    k_descale: Descale = None, v_descale: Descale = None, score_mod: Callable[..., torch.Tensor] | None = None,
    mask_mod: Callable[..., torch.Tensor] | None = None, out: torch.Tensor | None = None,
    return_softmax_lse: bool = False, version: int = 0, q_rest: torch.Tensor | None = None,
    k_rest: torch.Tensor | None = None,
) -> Any:
    """Attention of packed queries q [T, Hq, D] over packed keys or a paged cache.

    - Packed keys: k and v [Tk, Hkv, D], with cu_seqlens_k. seqused_k i32 [B] sets the number of valid keys of each
      sequence; the rows after them are masked. seqused_q i32 [B] sets the number of valid queries; the rows after them
      give 0.
    - A paged cache: k and v [pages, page, Hkv, D], with page_table i32 [B, n] and seqused_k i32 [B]. With page_starts
      i32 [B + 1] page_table is a list [n]: sequence b has the pages page_table[page_starts[b] : page_starts[b + 1]],
      and all of their rows if seqused_k is not given.
    - cu_seqlens_q and cu_seqlens_k, i32 [B + 1]: the first row of each sequence, then the end. max_seqlen_q and
      max_seqlen_k are at least the longest sequence's queries and keys; larger bounds change no result.
    - causal and window_size (left, right; -1 without bound) align a sequence's last query with its last key.
    - sinks [Hq]. q_descale, k_descale and v_descale [B, H], for 8-bit tensors.
    - score_mod and mask_mod are torch functions as in flex_attention. q_idx and kv_idx begin at 0 in each sequence.
      `version`: see with_kvcache.
    - softmax_scale: by default 1 / sqrt of the head dimension.
    - q_rest [T, Hq, R] and k_rest [Tk, Hkv, R], or pages [pages, page, Hkv, R]: the last columns of queries and of
      keys, as separate tensors. They have no gradient.

    Returns out [T, Hq, Dv]; with return_softmax_lse (out, lse [Hq, T]). out is the given one, if any, which may not require
    a gradient while autograd records.

    Raises ValueError for mask_mod beside causal or window_size, for score_mod beside softcap, for a page_table without
    seqused_k, and unless one of cu_seqlens_k and page_table is given.

    >>> import torch, heddle.torch.serving as serving
    >>> q, starts = torch.randn(7, 2, 8), torch.tensor([0, 3, 7], dtype=torch.int32)
    >>> serving.varlen_func(q, q, q, starts, starts, 4, 4, causal=True).shape
    torch.Size([7, 2, 8])
    """
    refuse_learned(out=out)
    others = (score_mod, mask_mod, sinks, seqused_q, q_rest, k_rest, page_starts, q_descale, k_descale, v_descale)
    if not softcap and not version and all(one is None for one in others):
        made = attend_packed_again(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, (window_size[0], 0) if causal else window_size,
            seqused_k, page_table, softmax_scale, out, True, return_softmax_lse)
        if made is not None:
            return finished(made, out, return_softmax_lse)
    require_axes(3, q=q, q_rest=q_rest)
    if page_starts is None:
        require_axes(3 if page_table is None else 4, k=k, v=v, k_rest=k_rest)
    call = Call(heads_first(q), k, v, softmax_scale, with_lse=return_softmax_lse, version=version)
    _set_options(call, causal, window_size, softcap, sinks, (q_descale, k_descale, v_descale), score_mod, mask_mod,
                 _forms.SHIFT if seqused_q is None else _forms.USED_SHIFT)
    if seqused_q is not None:
        if mask_mod is not None:
            raise ValueError("mask_mod is given beside seqused_q; write it into mask_mod")
        call.mask = _forms.USED_QUERIES + (f" and {call.mask}" if call.mask else "")
        require_counts("seqused_q", seqused_q, cu_seqlens_q.shape[0] - 1, rows_of_sequences(cu_seqlens_q))
        call.captures["seqused_q"] = seqused_q
    set_queries(call, cu_seqlens_q, max_seqlen_q)
    set_keys(call, k, v, cu_seqlens_k, max_seqlen_k, seqused_k, page_table, ("cu_seqlens_k", "page_table"),
             page_starts)
    if q_rest is not None:
        call.options["q_rest"] = heads_first(q_rest)
    if k_rest is not None:
        call.options["k_rest"] = heads_first(k_rest) if page_table is None else k_rest.transpose(1, 2)
    return attend_packed(call, q, v, out)


def rows_of_sequences(starts: torch.Tensor) -> torch.Tensor | None:
    """How many rows each sequence has. None where they are not at hand."""
    return starts.diff() if is_plain(starts) and starts.device.type == "cpu" else None


@named_as(kv_lengths="cache_seqlens", max_kv_len="max_seqlen_k", scale="softmax_scale")
def with_kvcache(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor | None = None,
    v: torch.Tensor | None = None, *, cache_seqlens: torch.Tensor | int, page_table: torch.Tensor | None = None,
    page_starts: torch.Tensor | None = None, max_seqlen_k: int | None = None,
    cache_batch_idx: torch.Tensor | None = None, cache_leftpad: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None, rotary_sin: torch.Tensor | None = None, rotary_interleaved: bool = True,
    rotary_seqlens: torch.Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, sinks: torch.Tensor | None = None,
    q_descale: Descale = None, k_descale: Descale = None, v_descale: Descale = None,
    score_mod: Callable[..., torch.Tensor] | None = None, mask_mod: Callable[..., torch.Tensor] | None = None,
    out: torch.Tensor | None = None, return_softmax_lse: bool = False, version: int = 0, batch_invariant: bool = False,
    prefix_group: torch.Tensor | None = None, prefix_len: torch.Tensor | None = None,
) -> Any:
    """Attention of q [B, L, Hq, D] over a KV cache, to which new rows are appended first.

    - k_cache and v_cache [B, S, Hkv, D]; with page_table i32 [B, n] pages [pages, page, Hkv, D].
    - page_starts, i32 [B + 1]: page_table is a list [n], and sequence b has the pages page_table[page_starts[b] :
      page_starts[b + 1]]. On a GPU, then set max_seqlen_k to the largest number of keys of a sequence.
    - cache_batch_idx, i32 [B]: the row of each sequence in a larger cache [entries, S, Hkv, D].
    - cache_seqlens, i32 [B] or one int: the number of valid keys in the cache.
    - cache_leftpad, i32 [B]: the number of first keys that are masked.
    - k and v [B, n, Hkv, D]: written in place after these keys; then cache_seqlens + n keys are valid. In an 8-bit
      cache, wider rows are divided by k_descale and v_descale; 8-bit rows are stored as they are.
    - rotary_cos and rotary_sin [positions, R / 2]: the angles of a rotary embedding, which rotates the first R columns
      of k and q (rotary_interleaved: pairs of neighbours; else columns i and i + R / 2). The positions are those of the
      rows in the cache, or start at rotary_seqlens i32 [B]. Without causal or a window all queries of a sequence have
      its first position.
    - causal and window_size (left, right; -1 without bound) align a sequence's last query with its last key.
    - sinks [Hq]. q_descale, k_descale and v_descale [B, H], for 8-bit tensors.
    - score_mod and mask_mod are torch functions as in flex_attention. q_idx counts the sequence's queries in q from 0,
      kv_idx its keys in the cache.
    - softmax_scale: by default 1 / sqrt of the head dimension.
    - `version`: pass a new number if the content of a tensor that mask_mod reads has changed in place.
    - batch_invariant: the bits of a sequence's out and lse do not depend on the other sequences, in CUDA graphs too.
    - prefix_group and prefix_len, i32 [B]: you promise that sequences of one group (0 or more) begin with the same
      keys, up to the smaller of their prefix_len. A GPU may read these once (heddle.find_prefixes() finds groups).

    Returns out [B, L, Hq, Dv]; with return_softmax_lse (out, lse [B, Hq, L]). out is the given one, if any, which may not
    require a gradient while autograd records.

    Raises ValueError if one of k and v is given without the other, on a CPU if the cache has no room for them
    or page_table no page, for rotary_cos without k, for page_table beside cache_batch_idx, for mask_mod beside causal,
    window_size or cache_leftpad, and for score_mod beside softcap.

    >>> import torch, heddle.torch.serving as serving
    >>> keys, values = torch.zeros(2, 2, 16, 1, 8)
    >>> lengths, new = torch.tensor([3, 5], dtype=torch.int32), torch.ones(2, 1, 1, 8)
    >>> serving.with_kvcache(new, keys, values, new, new, cache_seqlens=lengths, causal=True).shape
    torch.Size([2, 1, 1, 8])
    >>> keys[0, 3, 0, 0], values[1, 5, 0, 0]
    (tensor(1.), tensor(1.))
    """
    require_axes(4, q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v)
    require_axes(1, cache_seqlens=cache_seqlens, cache_batch_idx=cache_batch_idx)
    if not isinstance(cache_seqlens, torch.Tensor):
        length = cache_seqlens if isinstance(cache_seqlens, int) else operator.index(cache_seqlens)
        cache_seqlens = torch.full((q.shape[0],), length, dtype=torch.int32, device=q.device)
    if cache_batch_idx is not None:
        if page_table is not None:
            raise ValueError("cache_batch_idx is given beside page_table; one of both says where a sequence's rows are")
        page_table = cache_batch_idx.to(torch.int32).unsqueeze(1)  # a page is a sequence's row of the cache
    refuse_learned(out=out)
    rotary = _rotary(rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens)
    if (k is None) != (v is None):
        raise ValueError("one of k and v is given; both are appended, or none")
    if rotary is not None and k is None:
        raise ValueError("rotary_cos is given without k and v, whose rows it turns; all are accepted, or none")
    if k is not None and v is not None:
        at_first = not causal and tuple(window_size) == (-1, -1)
        turned = _append(k_cache, v_cache, k, v, cache_seqlens, (page_table, page_starts), (k_descale, v_descale), rotary,
                         None if rotary is None else q, at_first)
        q = q if turned is None else turned
        cache_seqlens = cache_seqlens + k.shape[1]
    call = Call(q.transpose(1, 2), k_cache.transpose(1, 2), v_cache.transpose(1, 2), softmax_scale,
                batch_invariant=batch_invariant or None, with_lse=return_softmax_lse, version=version)
    _set_options(call, causal, window_size, softcap, sinks, (q_descale, k_descale, v_descale), score_mod, mask_mod)
    if cache_leftpad is not None:
        if mask_mod is not None:
            raise ValueError("mask_mod is given beside cache_leftpad; write it into mask_mod")
        call.mask = _forms.behind_padding(call.mask)
        require_counts("cache_leftpad", cache_leftpad, q.shape[0])
        call.captures["cache_leftpad"] = cache_leftpad
    call.options["kv_lengths"] = cache_seqlens
    if page_table is not None:
        call.options["page_table"] = page_table
    if page_starts is not None:
        call.options["page_starts"] = page_starts
    for name, integers in (("prefix_group", prefix_group), ("prefix_len", prefix_len)):
        if integers is not None:
            call.options[name] = integers
    call.max_kv_len = max_seqlen_k
    call.out = target(out, q, v_cache)
    result, lse = attend(call)
    has_written(out)
    if out is None:
        out = result.transpose(1, 2)
    return (out, lse) if lse is not None else out


def _rotary(cos: torch.Tensor | None, sin: torch.Tensor | None, interleaved: bool,
            positions: torch.Tensor | None) -> Rotary | None:
    if (cos is None) != (sin is None):
        raise ValueError("one of rotary_cos and rotary_sin is given; both are accepted, or none")
    if cos is None or sin is None:
        if positions is not None:
            raise ValueError("rotary_seqlens is given without rotary_cos and rotary_sin; all are accepted, or none")
        return None
    return Rotary(cos, sin, interleaved, positions)


@named_as(cache_seqlens="lengths", kv_lengths="lengths")
def append(
    k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor,
    page_table: torch.Tensor | None = None, page_starts: torch.Tensor | None = None, *, k_descale: Descale = None,
    v_descale: Descale = None, rotary: Rotary | None = None, q: torch.Tensor | None = None, queries_at_first: bool = False,
) -> torch.Tensor | None:
    """Appends k and v [B, n, Hkv, D] to k_cache and v_cache, after the `lengths` [B] keys of each sequence, on the
    device, in one launch. The caches, page_table and page_starts are as with_kvcache takes them, and so are k_descale
    and v_descale. Returns q [B, L, Hq, D], if it is given, rotated as the new rows are; queries_at_first: all queries
    of a sequence have the position of its first new row.

    On a CPU, rows past the cache's end and pages that do not exist, such as -1, raise ValueError. On a GPU, where
    checking would wait, such rows are not written. Raises NotImplementedError for a rotary embedding or factors if
    autograd records k, v or q.

    >>> import torch, heddle.torch.serving as serving
    >>> keys, values = torch.zeros(2, 1, 4, 1, 2)
    >>> serving.append(keys, values, torch.ones(1, 2, 1, 2), torch.ones(1, 2, 1, 2), torch.tensor([1]))
    >>> keys[0, :, 0, 0]
    tensor([0., 1., 1., 0.])
    """
    require_axes(4, k_cache=k_cache, v_cache=v_cache, k=k, v=v, q=q)
    require_axes(1, lengths=lengths)
    return _append(k_cache, v_cache, k, v, lengths, (page_table, page_starts), (k_descale, v_descale), rotary, q, queries_at_first)


def _append(
    k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor,
    pages: tuple[torch.Tensor | None, torch.Tensor | None], descales: tuple[Descale, Descale], rotary: Rotary | None,
    q: torch.Tensor | None, queries_at_first: bool,
) -> torch.Tensor | None:
    """append(), whose errors call the lengths cache_seqlens."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (k, v, q, k_cache, v_cache)):
        if rotary is not None or any(descale is not None for descale in descales):
            raise NotImplementedError("k, v or q requires a gradient, and a rotary embedding and factors have none; "
                                      "rows without a gradient are accepted, or calls under torch.no_grad()")
        append_for_autograd(k_cache, v_cache, k, v, lengths, *pages)
        return None
    return append_rows(k_cache, v_cache, k, v, lengths, pages, descales, rotary, q, queries_at_first)
