"""Packed sequences: varlen_attn and varlen_attn_out, as torch has them, and what serving functions share with them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.varlen import AuxRequest

from . import _forms
from ._call import Call
from ._dispatch import attend
from ._named_tensors import named_as, pair_of_ints
from ._recorded import attend_packed_again
from ._results import OutAndLse, heads_first
from ._written import has_written, refuse_learned

NO_BOUND = 2**30  # of a window: an index and more would leave i32, and no sequence is so long
NAMES = {"kv_lengths": "seqused_k", "page_table": "block_table", "max_q_len": "max_q", "max_kv_len": "max_k",
         "cu_seqlens_q": "cu_seq_q", "cu_seqlens_kv": "cu_seq_k"}


@named_as(**NAMES)
def varlen_attn(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None,
    max_q: int, max_k: int, *, return_aux: AuxRequest | None = None, scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False, seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None, num_splits: int | None = None,
) -> Any:
    """torch.nn.attention.varlen.varlen_attn: packed sequences.

    - query [T_q, H, D], key and value [T_k, Hkv, D]: the rows of all sequences, one after the other.
    - cu_seq_q and cu_seq_k, i32 [N + 1]: the first row of each sequence, then the end. On a GPU each run reads them
      there.
    - max_q and max_k: at least the longest sequence's queries and keys. Larger bounds change no result.
    - window_size is (keys before, keys after) the query's own key; -1 and 2^30 or more are without bound. A sequence's
      last query is aligned with its last key. (-1, 0) is causal.
    - seqused_k, i32 [N]: the number of valid keys of each sequence. The others are masked.
    - block_table, i32 [N, pages]: key and value are pages [pages, page, Hkv, D], cu_seq_k is None, and seqused_k is
      required.

    - scale: by default 1 / sqrt(D).

    Returns out [T_q, H, D]; with return_aux.lse (out, lse [H, T_q]).

    Raises ValueError for tensors of another rank, for a window_size below -1, for heads that differ without enable_gqa,
    and unless exactly one of cu_seq_k and block_table is given. Raises NotImplementedError for num_splits.

    >>> import torch, heddle.torch
    >>> q, starts = torch.randn(10, 2, 8), torch.tensor([0, 4, 10], dtype=torch.int32)
    >>> heddle.torch.varlen_attn(q, q, q, starts, starts, 6, 6, window_size=(-1, 0)).shape
    torch.Size([10, 2, 8])
    """
    return packed_attention(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, return_aux, scale, window_size,
                            enable_gqa, seqused_k, block_table, num_splits)


@named_as(**NAMES)
def varlen_attn_out(
    out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None, max_q: int, max_k: int, *, return_aux: AuxRequest | None = None,
    scale: float | None = None, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None, block_table: torch.Tensor | None = None, num_splits: int | None = None,
) -> Any:
    """As varlen_attn(), but writes into `out` [T_q, H, D] and returns it. While autograd records, it raises
    RuntimeError if `out` or an input requires a gradient.

    >>> import torch, heddle.torch
    >>> q, starts = torch.randn(10, 2, 8), torch.tensor([0, 4, 10], dtype=torch.int32)
    >>> out = torch.empty_like(q)
    >>> heddle.torch.varlen_attn_out(out, q, q, q, starts, starts, 6, 6) is out
    True
    """
    return packed_attention(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, return_aux, scale, window_size,
                            enable_gqa, seqused_k, block_table, num_splits, out)


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None,
    max_q: int, max_k: int, return_aux: AuxRequest | None, scale: float | None, window_size: tuple[int, int],
    enable_gqa: bool, seqused_k: torch.Tensor | None, block_table: torch.Tensor | None, num_splits: int | None,
    out: torch.Tensor | None = None,
) -> Any:
    with_lse = return_aux is not None and return_aux.lse
    refuse_learned(out=out)
    if num_splits is None:
        made = attend_packed_again(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size, seqused_k,
                                   block_table, scale, out, enable_gqa, with_lse)
        if made is not None:
            return finished(made, out, with_lse)
    check(query, key, value, enable_gqa, block_table is not None)
    refuse_splits(num_splits)
    call = Call(heads_first(query), key, value, None if scale is None else float(scale), with_lse=with_lse)
    set_window(call, window_size)
    set_queries(call, cu_seq_q, max_q)
    set_keys(call, key, value, cu_seq_k, max_k, seqused_k, block_table, ("cu_seq_k", "block_table"))
    return attend_packed(call, query, value, out)


def finished(made: OutAndLse, out: torch.Tensor | None, with_lse: bool) -> Any:
    """What a function of packed queries returns. `out`: the caller's, which now is written."""
    has_written(out)
    return made if with_lse else made[0]


def attend_packed(call: Call, query: torch.Tensor, value: torch.Tensor, out: torch.Tensor | None) -> Any:
    """out [T, H, Dv] of packed queries (the given `out`, if any), with an lse of the call (out, lse [H, T])."""
    call.out = target(out, query, value)
    made, lse = attend(call)
    has_written(out)
    if out is None:
        out = made.transpose(1, 2).squeeze(0)
    return (out, lse.squeeze(0)) if lse is not None else out


def check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool, paged: bool) -> None:
    """Raises ValueError for shapes that do not fit."""
    rank = 4 if paged else 3
    if query.dim() != 3 or key.dim() != rank or value.dim() != rank:
        pages = "[pages, page, heads, head_dim]" if paged else "[tokens, heads, head_dim]"
        raise ValueError(f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} axes; 3, {rank} and "
                         f"{rank} are accepted: [tokens, heads, head_dim], and {pages} twice")
    heads, kv_heads = query.shape[1], key.shape[-2]
    if heads != kv_heads and not enable_gqa:
        raise ValueError(f"Expect query and key/value to have the same number of heads but got Hq={heads} and "
                         f"Hkv={kv_heads}. Try setting enable_gqa=True for GQA.")
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        raise ValueError(f"Expect number of query heads to be a multiple of kv heads for GQA but got Hq={heads} and "
                         f"Hkv={kv_heads}.")


def refuse_splits(num_splits: int | None) -> None:
    if num_splits is not None:
        raise NotImplementedError(f"num_splits is {num_splits}; None is accepted: the planner chooses whether several "
                                  "workgroups share the keys of a tile")


def target(out: torch.Tensor | None, rows: torch.Tensor, value: torch.Tensor) -> torch.Tensor | None:
    """The caller's `out` as a call writes it. Raises ValueError for another shape than the rows' [..., H, Dv]."""
    if out is None:
        return None
    wanted = *rows.shape[:-1], value.shape[-1]
    if tuple(out.shape) != wanted:
        raise ValueError(f"out has shape {tuple(out.shape)}; {wanted} is accepted")
    return heads_first(out) if out.dim() == 3 else out.transpose(1, 2)


def set_queries(call: Call, starts: torch.Tensor, longest: int) -> None:
    call.options["cu_seqlens_q"], call.max_q_len = starts, longest


def set_keys(
    call: Call, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor | None, longest: int,
    used: torch.Tensor | None, table: torch.Tensor | None, names: tuple[str, str],
    page_starts: torch.Tensor | None = None,
) -> None:
    """Sets the keys and values that packed queries see. `names`: of `starts` and `table`, which is a list where there
    are page_starts. Without `used` a sequence then has all rows of its pages.

    Raises ValueError unless one of `starts` and `table` is given, and for a table without `used`.
    """
    if (starts is None) == (table is None):
        given = "neither is given" if table is None else "both are given"
        raise ValueError(f"{names[0]} says where packed sequences begin, {names[1]} where their pages are; {given}, "
                         "and one is accepted")
    if page_starts is not None and table is None:
        raise ValueError(f"page_starts is given without {names[1]}, the list of pages; both are accepted")
    call.max_kv_len = longest
    if used is not None:
        call.options["kv_lengths"] = used
    if starts is not None:
        call.options["cu_seqlens_kv"] = starts
        call.key, call.value = heads_first(key), heads_first(value)
        return
    if used is None and page_starts is None:
        raise ValueError(f"{names[1]} is given without seqused_k, the keys that each sequence has")
    assert table is not None
    call.options["page_table"] = table
    if page_starts is not None:
        call.options["page_starts"] = page_starts
    call.key, call.value = key.transpose(1, 2), value.transpose(1, 2)


def set_window(call: Call, window_size: tuple[int, int], shift: str = _forms.SHIFT) -> None:
    """The mask of a window of (left, right) keys, -1 without bound. `shift`, added to q_idx, aligns the last query."""
    left, right = (-1 if isinstance(size, int) and size >= NO_BOUND else size
                   for size in pair_of_ints("window_size", window_size))
    if left < -1 or right < -1:
        raise ValueError(f"window_size is {tuple(window_size)}; sizes of -1 (no bound), 0 and more are accepted")
    if left < 0 and right < 0:
        return
    call.mask = _forms.window(left >= 0, right >= 0, shift)
    if left >= 0:
        call.params["window_left"] = left
    if right >= 0:
        call.params["window_right"] = right
