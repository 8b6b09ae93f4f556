"""Lists of pages as FlashInfer has them: the pages of all requests one after the other."""

from __future__ import annotations

from typing import Any

import torch

from ._append import append_rows
from ._inputs import is_plain
from ._named_tensors import is_tensor, names_arguments, require_axes, require_lists, require_sizes


@names_arguments
def get_seq_lens(kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """The rows of each request, i32 [B]: its last page has kv_last_page_len[b] of them. A request without pages has 0.

    >>> import torch
    >>> get_seq_lens(torch.tensor([0, 2, 2, 3]), torch.tensor([5, 1, 16]), 16).tolist()
    [21, 0, 16]
    """
    require_lists(kv_indptr=kv_indptr, kv_last_page_len=kv_last_page_len)
    pages = kv_indptr[1:] - kv_indptr[:-1]
    if kv_last_page_len.shape != pages.shape:
        raise ValueError(f"kv_last_page_len has shape {list(kv_last_page_len.shape)}; {list(pages.shape)} is accepted, an entry a "
                         "request of kv_indptr")
    return torch.where(pages > 0, (pages - 1) * page_size + kv_last_page_len, 0).to(torch.int32)


@names_arguments
def get_batch_indices_positions(append_indptr: torch.Tensor, seq_lens: torch.Tensor,
                                nnz: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of nnz new rows, i32: its request, and its place there. Request b's new rows are its last ones, and begin
    at append_indptr[b]. Raises ValueError on a CPU for more rows than append_indptr ends at; on a GPU, where nobody looks, those
    behind its end are the last request's.

    >>> import torch
    >>> get_batch_indices_positions(torch.tensor([0, 1, 3]), torch.tensor([5, 2]), 3)
    (tensor([0, 1, 1], dtype=torch.int32), tensor([4, 0, 1], dtype=torch.int32))
    """
    require_lists(append_indptr=append_indptr, seq_lens=seq_lens)
    require_sizes(nnz=nnz)
    count = append_indptr.shape[0] - 1
    if count < 0 or seq_lens.shape[0] != count:
        raise ValueError(f"append_indptr has shape {list(append_indptr.shape)} and seq_lens {list(seq_lens.shape)}; [B + 1] and [B] are "
                         "accepted")
    is_looked_at = is_plain(append_indptr) and append_indptr.device.type == "cpu" and not torch.compiler.is_dynamo_compiling()
    if is_looked_at and nnz > int(append_indptr[-1]):
        raise ValueError(f"nnz is {nnz}; 0 to {int(append_indptr[-1])} are accepted, where append_indptr ends")
    rows = torch.arange(nnz, device=append_indptr.device)
    requests = (torch.searchsorted(append_indptr.long(), rows, right=True) - 1).clamp(0, max(count - 1, 0))
    ends = append_indptr.long()[requests + 1]
    positions = seq_lens.long()[requests] - (ends - rows)
    return requests.to(torch.int32), positions.to(torch.int32)


def require_layout(kv_layout: Any) -> None:
    if kv_layout not in ("NHD", "HND"):
        raise ValueError(f"kv_layout is {kv_layout!r}; 'NHD' and 'HND' are accepted")


def heads_last(x: torch.Tensor, kv_layout: str) -> torch.Tensor:
    """[..., rows, heads, D] of either layout."""
    require_layout(kv_layout)
    return x if kv_layout == "NHD" else x.transpose(-3, -2)


def caches_of(paged_kv_cache: Any, kv_layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v [pages, page, Hkv, D] of a pair of caches, or of one that has both along its second axis."""
    if not isinstance(paged_kv_cache, torch.Tensor):
        is_pair = isinstance(paged_kv_cache, (tuple, list)) and len(paged_kv_cache) == 2
        if not is_pair or not all(is_tensor(x) and x.dim() == 4 for x in paged_kv_cache):
            raise TypeError(f"paged_kv_cache is of type {type(paged_kv_cache).__name__}; a pair of tensors [pages, page, Hkv, D] "
                            "(HND: [pages, Hkv, page, D]), or one of both, is accepted")
        pair = tuple(paged_kv_cache)
    else:
        if paged_kv_cache.dim() != 5 or paged_kv_cache.shape[1] != 2:
            raise ValueError(f"paged_kv_cache is {list(paged_kv_cache.shape)}; [pages, 2, page, Hkv, D] (HND: [pages, 2, "
                             "Hkv, page, D]) and a pair of tensors without the second axis are accepted")
        pair = paged_kv_cache.unbind(1)
    k, v = (heads_last(x, kv_layout) for x in pair)
    return k, v


@names_arguments
def append_paged_kv_cache(
    append_key: torch.Tensor, append_value: torch.Tensor, batch_indices: torch.Tensor, positions: torch.Tensor,
    paged_kv_cache: Any, kv_indices: torch.Tensor, kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor,
    kv_layout: str = "NHD",
) -> None:
    """Writes rows append_key and append_value [T, Hkv, D] to the places positions[t] of the requests batch_indices[t].

    Raises ValueError on a CPU for a place without a page; on a GPU such rows are not written.

    >>> import torch
    >>> cache, one = torch.zeros(3, 2, 4, 1, 2), torch.tensor([1])
    >>> append_paged_kv_cache(torch.ones(1, 1, 2), torch.ones(1, 1, 2), one * 0, one * 5, cache, torch.tensor([2, 0]),
    ...                       torch.tensor([0, 2]), one * 2)
    >>> cache[0, 0, :, 0, 0]
    tensor([0., 1., 0., 0.])
    """
    require_axes(3, append_key=append_key, append_value=append_value)
    require_lists(batch_indices=batch_indices, positions=positions, kv_indices=kv_indices, kv_indptr=kv_indptr,
                  kv_last_page_len=kv_last_page_len)
    for name, x in (("append_value", append_value), ("batch_indices", batch_indices), ("positions", positions)):
        if x.shape[0] != append_key.shape[0]:
            raise ValueError(f"{name} has shape {list(x.shape)}; as many rows as append_key's, {append_key.shape[0]}, are accepted")
    k, v = caches_of(paged_kv_cache, kv_layout)
    page_size, most = k.shape[1], kv_indptr.shape[0] - 2
    if most < 0:
        raise ValueError(f"kv_indptr has shape {list(kv_indptr.shape)}; [B + 1] for B of at least 1 is accepted")
    requests = batch_indices.long().clamp(0, most)
    at = kv_indptr.long()[requests] + positions // page_size
    there = (positions >= 0) & (requests == batch_indices) & (at < kv_indptr.long()[requests + 1])
    pages = kv_indices[at.clamp(0, max(kv_indices.shape[0] - 1, 0))] if kv_indices.shape[0] else torch.zeros_like(at)
    table = torch.where(there, pages, -1).to(torch.int32).unsqueeze(1)  # each row is a sequence of one page
    append_rows(k, v, append_key.unsqueeze(1), append_value.unsqueeze(1), (positions % page_size).to(torch.int32),
                (table, None), (None, None), None, None, False)


class PageLists:
    """What plan() was given, as runs take it: the pages of all requests in a list, where each one's begin in it, and the
    lengths."""

    pages: torch.Tensor  # i32 [entries]; those behind the last request's are nobody's
    starts: torch.Tensor  # i32 [B + 1]
    lengths: torch.Tensor  # i32 [B]
    most_pages: int  # of a request, at least

    def __init__(self, stay: bool, indptr: torch.Tensor | None, indices: torch.Tensor | None) -> None:
        """`stay`: all keep their addresses, for as many requests and pages as these buffers have."""
        self._stay = stay
        if not stay:
            return
        if indptr is None or indices is None:
            raise ValueError("use_cuda_graph is given without the buffers of indptr and indices, which bound the requests "
                             "and pages of all plans; both are needed")
        self._make(indptr.shape[0] - 1, indices.shape[0], indices.device)
        self.most_pages = indices.shape[0]

    def _make(self, requests: int, entries: int, device: torch.device) -> None:
        self.pages = torch.zeros(entries, dtype=torch.int32, device=device)
        self.starts = torch.zeros(requests + 1, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(requests, dtype=torch.int32, device=device)

    def plan(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, page_size: int) -> None:
        """On the device of indices. Without `stay` this waits for indptr if it is on a GPU."""
        requests, entries = indptr.shape[0] - 1, indices.shape[0]
        if self._stay:
            self._check(requests, entries)
        else:
            # Powers of two, so that the kernel's plan serves requests that grow.
            counts = indptr[1:] - indptr[:-1]
            self.most_pages = _power_of_two(int(counts.max()) if requests else 1)
            self._make(requests, _power_of_two(entries), indices.device)
        self.starts.copy_(indptr)
        self.pages[:entries].copy_(indices)
        self.lengths.copy_(get_seq_lens(indptr, last_page_len.to(indptr.device), page_size))

    def most_keys(self, page_size: int) -> int:
        return self.most_pages * page_size

    def _check(self, requests: int, entries: int) -> None:
        bound, pages = self.lengths.shape[0], self.pages.shape[0]
        if requests != bound or entries > pages:
            raise ValueError(f"indptr has {requests} requests and indices {entries} pages; the buffers of use_cuda_graph "
                             f"accept {bound} requests and up to {pages} pages")


def _power_of_two(x: int) -> int:
    return 1 << max(x - 1, 0).bit_length()
