"""Requests that share their first pages, in the shape of FlashInfer's wrapper of several levels: the pages of a level are
those of all requests below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _core
from . import serving
from ._latent import refuse
from ._named_tensors import names_arguments
from ._page_lists import PageLists, caches_of, get_seq_lens, require_layout

Arrays = Sequence[torch.Tensor]
# Arguments of plan() about FlashInfer's kernels, without an effect on results.
KERNELS = {"use_fp16_qk_reduction", "rope_scale", "rope_theta", "q_data_type", "kv_data_type", "non_blocking"}


class MultiLevelCascadeAttentionWrapper:
    """Attention over pages of several levels: those that all requests read, those of some of them, those of one. plan()
    makes a list of pages of each request of them, and says which are shared; run() is one attention over these, whose
    kernel for few queries reads shared pages once for several requests (heddle.torch.serving.with_kvcache).

    >>> import torch
    >>> from heddle.torch import flashinfer
    >>> wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2)
    >>> levels = [([0, 2], [0, 1, 2]), ([0, 2], [0, 1, 2]), ([5, 0], [2, 7]), ([16], [3, 8])]  # of each array
    >>> wrapper.plan(*([torch.tensor(x, dtype=torch.int32) for x in array] for array in levels), 4, 2, 8, 16)
    >>> wrapper.run(torch.randn(2, 4, 8), torch.randn(8, 2, 16, 2, 8)).shape
    torch.Size([2, 4, 8])
    """

    def __init__(self, num_levels: int, float_workspace_buffer: torch.Tensor | None = None, kv_layout: str = "NHD",
                 use_cuda_graph: bool = False, qo_indptr_buf_arr: Any = None, paged_kv_indptr_buf_arr: Any = None,
                 paged_kv_indices_buf_arr: Any = None, paged_kv_last_page_len_buf_arr: Any = None,
                 backend: str = "auto") -> None:
        refuse(use_cuda_graph=use_cuda_graph)
        require_layout(kv_layout)
        self._levels, self._kv_layout = num_levels, kv_layout
        self._pages = PageLists(False, None, None)
        self._arguments: dict[str, Any] | None = None

    @names_arguments
    def plan(self, qo_indptr_arr: Arrays, paged_kv_indptr_arr: Arrays, paged_kv_indices_arr: Arrays,
             paged_kv_last_page_len: Arrays, num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int,
             causal: bool = False, pos_encoding_mode: str = "NONE", sm_scale: float | None = None, window_left: int = -1,
             logits_soft_cap: float | None = None, **given: Any) -> None:
        """Entry i of a level has the queries from qo_indptr_arr[level][i] on, and pages as the wrappers of one level have
        them. Pages of a level that others follow are full. Waits for the arrays if they are on a GPU.

        Raises ValueError for levels whose queries do not lie within those of the level before, and NotImplementedError
        for a window and a rotary embedding, which would differ by level."""
        refuse(**{name: None if name in KERNELS else value for name, value in given.items()},
               window_left=None if window_left < 0 else window_left,
               pos_encoding_mode=None if pos_encoding_mode == "NONE" else pos_encoding_mode)
        arrays = [[x.cpu().to(torch.int32) for x in array]
                  for array in (qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len)]
        for array in arrays:
            if len(array) != self._levels:
                raise ValueError(f"plan() is given arrays of {len(array)} levels; {self._levels} are accepted, as the wrapper "
                                 "was made for")
        queries, indptr, indices, last = arrays
        lengths = [get_seq_lens(starts, rows, page_size) for starts, rows in zip(indptr, last)]
        pages, starts, keys = [], [0], []
        for first, end in zip(queries[-1].tolist(), queries[-1][1:].tolist()):
            keys.append(0)
            for level in range(self._levels):
                entry = int(torch.searchsorted(queries[level], first, right=True)) - 1
                entry = min(max(entry, 0), queries[level].shape[0] - 2)
                if first < end and not queries[level][entry] <= first < end <= queries[level][entry + 1]:
                    raise ValueError(f"qo_indptr_arr[{level}] gives no entry the queries {first} to {end} of the last level; "
                                     "entries that hold those of the next level are accepted")
                own = int(lengths[level][entry])
                if own and keys[-1] % page_size:
                    raise ValueError(f"paged_kv_last_page_len[{level - 1}] leaves a page that is not full before those of "
                                     f"level {level}; full pages of {page_size} rows are accepted there")
                pages += indices[level][indptr[level][entry]:indptr[level][entry + 1]].tolist()
                keys[-1] += own
            starts.append(len(pages))
        listed, begins, counts = (torch.tensor(numbers, dtype=torch.int32, device="cpu") for numbers in (pages, starts, keys))
        self._place(listed, begins, counts, page_size, paged_kv_indices_arr[-1].device)
        counts = queries[-1][1:] - queries[-1][:-1]
        self._queries = int(counts.max()) if counts.numel() else 0
        self._alike = bool((counts == self._queries).all())
        self._starts = queries[-1].to(self._pages.lengths.device)
        self._arguments = dict(softmax_scale=head_dim**-0.5 if sm_scale is None else sm_scale, causal=causal,
                               softcap=logits_soft_cap or 0.0)

    begin_forward = plan

    def _place(self, pages: torch.Tensor, starts: torch.Tensor, keys: torch.Tensor, page_size: int,
               device: torch.device) -> None:
        found = _core.find_prefixes(pages, keys, page_size, starts)
        self._prefixes = [torch.utils.dlpack.from_dlpack(x).to(device) for x in found]
        last = torch.where(keys > 0, (keys - 1) % page_size + 1, 0)
        self._pages.plan(starts.to(device), pages.to(device), last.to(device), page_size)

    @names_arguments
    def run(self, q: torch.Tensor, paged_kv_cache: Any) -> torch.Tensor:
        """q [rows, Hq, D]; paged_kv_cache: (k, v), or one tensor with both along its second axis. Returns [rows, Hq, Dv]."""
        if self._arguments is None:
            raise RuntimeError("run() is called before plan()")
        k, v = caches_of(paged_kv_cache, self._kv_layout)
        lists: dict[str, Any] = {"page_table": self._pages.pages, "page_starts": self._pages.starts}
        most = self._pages.most_keys(k.shape[1])
        if self._alike and self._queries > 0:
            found: torch.Tensor = serving.with_kvcache(
                q.view(-1, self._queries, *q.shape[1:]), k, v, cache_seqlens=self._pages.lengths, max_seqlen_k=most,
                prefix_group=self._prefixes[0], prefix_len=self._prefixes[1], **lists, **self._arguments)
            return found.reshape(q.shape[0], *found.shape[2:])
        out: torch.Tensor = serving.varlen_func(
            q, k, v, self._starts, None, self._queries, most, seqused_k=self._pages.lengths, **lists, **self._arguments)
        return out

    forward = run
