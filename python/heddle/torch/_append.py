"""New keys and values for a cache of torch's tensors: the operator heddle::append_kv, and what serving asks of it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import _core
from . import _private_names
from ._inputs import bare, is_plain
from ._operators import library
from ._written import has_written

Given = torch.Tensor | None


class Rotary(NamedTuple):
    """A rotary embedding: cos and sin [positions, R / 2], and the position of each sequence's first new row (None: its
    row in the cache)."""

    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool
    positions: Given = None


library.define(  # type: ignore[no-untyped-call]
    "append_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor kv_lengths, Tensor? page_table, "
    "Tensor? page_starts, Tensor? k_descale, Tensor? v_descale, Tensor? cos, Tensor? sin, Tensor? positions, bool interleaved, Tensor? q, "
    "Tensor(c!)? q_out, bool queries_at_first) -> ()")


def append_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, lengths: torch.Tensor,
    page_table: Given, page_starts: Given, k_descale: Given, v_descale: Given, cos: Given, sin: Given, positions: Given,
    interleaved: bool, q: Given, q_out: Given, queries_at_first: bool,
) -> None:
    """heddle.append_kv on torch's current stream. All tensors are [B, H, rows, D]."""
    k, v, k_cache, v_cache = bare((k, v, k_cache, v_cache))
    stream = _private_names.stream_of(k.device.index) if k.device.type == "cuda" else 0
    _core.append_kv(_rows(k), _rows(v), k_cache, v_cache, lengths, None if q is None else _rows(q), q_out, None,
                    page_table, page_starts, k_descale, v_descale, cos, sin, positions, interleaved, queries_at_first,
                    stream)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Elements of a row are neighbours."""
    return x if x.shape[-1] < 2 or x.stride(-1) == 1 else x.contiguous()


def fake_append_kv(*_: object) -> None:
    """Writes; makes no tensor."""


for _key in ("CPU", "CUDA"):
    library.impl("append_kv", append_kv, _key)  # type: ignore[no-untyped-call]
torch.library.register_fake("heddle::append_kv", fake_append_kv, lib=library)


def append_rows(
    k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor,
    pages: tuple[Given, Given], descales: tuple[Given, Given], rotary: Rotary | None, q: Given, queries_at_first: bool,
) -> Given:
    """Appends rows [B, n, H, D] to caches [.., rows, H, D]. `pages`: page_table and page_starts. Returns the turned queries, if q is given."""
    refuse_unwritable(k_cache=k_cache, v_cache=v_cache, k=k, v=v)
    angles = (None, None, None, False) if rotary is None else (
        rotary.cos, rotary.sin, rotary.positions, rotary.interleaved)
    turned = None if q is None else torch.empty_like(q)
    queries = (None, None) if q is None or turned is None else (q.transpose(1, 2), turned.transpose(1, 2))
    if k.element_size() == 1:  # they are stored as they are
        descales = None, None
    rows, caches = (k.transpose(1, 2), v.transpose(1, 2)), (k_cache.transpose(1, 2), v_cache.transpose(1, 2))
    try:
        torch.ops.heddle.append_kv(*rows, *caches, lengths, *pages, *descales, *angles, *queries, queries_at_first)
    except ValueError as error:
        if "kv_lengths" not in str(error):
            raise
        raise ValueError(str(error).replace("kv_lengths", "cache_seqlens")) from None
    has_written(k_cache, v_cache)
    return turned


def refuse_unwritable(k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raises RuntimeError for tensors on several devices, and for caches of lazily negated elements."""
    for name, x in (("v_cache", v_cache), ("k", k), ("v", v)):
        if x.device != k_cache.device:
            raise RuntimeError(f"{name} is on {x.device} and k_cache on {k_cache.device}; tensors on one device are accepted")
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        if not torch.compiler.is_dynamo_compiling() and x.is_neg():
            raise RuntimeError(f"{name} has elements that are negated when they are read (a part of a conjugate), and rows are "
                               "written into it; its resolve_neg() is accepted")


def append_for_autograd(
    k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor,
    page_table: Given, page_starts: Given = None,
) -> None:
    """Appends by torch's own operations, which autograd records. On a GPU, where nobody looks, rows past the end overwrite
    the last one.

    Raises ValueError on the CPU for rows past the end and for pages that are not there."""
    position = lengths.long().unsqueeze(1) + torch.arange(k.shape[1], device=lengths.device)
    page = k_cache.shape[1]
    room: int | torch.Tensor = page if page_table is None else page * page_table.shape[-1]
    if page_starts is not None:
        room = (page_starts[1:] - page_starts[:-1]).long().unsqueeze(1) * page
    is_looked_at = is_plain(lengths) and lengths.device.type == "cpu" and not torch.compiler.is_dynamo_compiling()
    if is_looked_at:
        refuse_outside(lengths, position, room)
    position = position.clamp(min=0).minimum(torch.as_tensor(room, device=position.device) - 1)
    entry = torch.arange(k.shape[0], device=k.device).unsqueeze(1).expand_as(position)
    if page_table is not None:
        number = position // page
        if page_starts is None:
            entry = page_table.long().gather(1, number)
        else:
            entry = page_table.long()[page_starts[:-1].long().unsqueeze(1) + number]
        if is_looked_at and entry.numel() and not 0 <= int(entry.min()) <= int(entry.max()) < k_cache.shape[0]:
            raise ValueError(f"page_table has the pages {int(entry.min())} to {int(entry.max())} where new rows are written; pages are "
                             f"numbered from 0 to {k_cache.shape[0] - 1}")
        position = position % page
    k_cache[entry, position] = k.to(k_cache.dtype)
    v_cache[entry, position] = v.to(v_cache.dtype)


def refuse_outside(lengths: torch.Tensor, position: torch.Tensor, room: int | torch.Tensor) -> None:
    """Raises ValueError for a sequence whose new rows, at position [B, n], do not fit into `room` rows."""
    outside = ((position < 0) | (position >= room)).any(1)
    if outside.any():
        at = int(outside.nonzero()[0])
        rows = room if isinstance(room, int) else int(room[at])
        raise ValueError(f"cache_seqlens[{at}] is {int(lengths[at])}, and {position.shape[1]} new rows follow; the cache has "
                         f"room for {rows}")
