"""Multi-head latent attention over a paged cache, in the shape of FlashInfer's wrapper: queries, and rows of the cache,
come as a latent part and a rotary part."""

from __future__ import annotations

from typing import Any

import torch

from . import serving
from ._flashinfer_states import LOG2_E
from ._named_tensors import names_arguments
from ._page_lists import PageLists

Given = torch.Tensor | None
# Arguments of plan() about FlashInfer's kernels, without an effect on results.
SCHEDULING = {"qk_nope_head_dim", "enable_pdl", "is_var_seq", "lse_mode", "kv_layout", "q_data_type", "kv_data_type"}


def refuse(**given: Any) -> None:
    """Raises NotImplementedError for arguments that change results and have no counterpart."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{name} is given, which has no counterpart here; None is accepted")


def joined(first: torch.Tensor, second: torch.Tensor) -> Given:
    """Both as one tensor, whose last axis has first's columns and then second's, if they are such views of one buffer."""
    columns = first.shape[-1] + second.shape[-1]
    alike = first.shape[:-1] == second.shape[:-1] and first.dtype == second.dtype and first.device == second.device
    if not alike or first.stride(-1) != 1 or second.stride(-1) != 1:
        return None
    for extent, own, other in zip(first.shape[:-1], first.stride(), second.stride()):
        if extent > 1 and (own != other or own < columns):
            return None
    if first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr():
        return None
    if first.storage_offset() + first.shape[-1] != second.storage_offset():
        return None
    return first.as_strided((*first.shape[:-1], columns), first.stride())


class BatchMLAPagedAttentionWrapper:
    """Absorbed multi-head latent attention: all heads read one row of the cache a token, as keys whole, and as values its
    latent part.

    The cache's parts, ckv_cache [pages, page_size, latent] and kpe_cache [pages, page_size, rope], are two tensors, or
    slices of one; so are the queries' parts. Kernels read them where they are and copy nothing. A row of ckv_cache is read
    once, as a part of a key and as a value.

    With use_cuda_graph the list of pages and the lengths stay where they are, as with the wrappers of decoding.

    >>> import torch
    >>> from heddle.torch import flashinfer
    >>> wrapper, cache = flashinfer.BatchMLAPagedAttentionWrapper(), torch.randn(4, 16, 24)
    >>> starts, indptr, indices, lengths = (
    ...     torch.tensor(x, dtype=torch.int32) for x in ([0, 1, 3], [0, 2, 3], [0, 3, 1], [20, 16]))
    >>> wrapper.plan(starts, indptr, indices, lengths, 4, 16, 8, 16, True, 24**-0.5)
    >>> wrapper.run(torch.randn(3, 4, 16), torch.randn(3, 4, 8), cache[..., :16], cache[..., 16:]).shape
    torch.Size([3, 4, 16])
    """

    def __init__(self, float_workspace_buffer: Given = None, use_cuda_graph: bool = False, qo_indptr: Given = None,
                 kv_indptr: Given = None, kv_indices: Given = None, kv_len_arr: Given = None,
                 backend: str = "auto") -> None:
        self._pages = PageLists(use_cuda_graph, kv_indptr, kv_indices)
        self._graph = use_cuda_graph
        self._starts: Given = None
        self._longest = 0

    @names_arguments
    def plan(self, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor, kv_len_arr: torch.Tensor,
             num_heads: int, head_dim_ckv: int, head_dim_kpe: int, page_size: int, causal: bool, sm_scale: float,
             q_data_type: Any = None, kv_data_type: Any = None, use_profiler: bool = False, **given: Any) -> None:
        """Request b has the queries from qo_indptr[b] on, and kv_len_arr[b] rows in the pages kv_indices[kv_indptr[b] :
        kv_indptr[b + 1]]. causal: its last query sees all of its keys, the ones before it one less each. Waits for
        qo_indptr if it is on a GPU: the longest request bounds each run's work. For graphs the first plan's bounds all.
        """
        refuse(use_profiler=use_profiler, **{
            name: None if name in SCHEDULING or value == "none" or value == "default" else value
            for name, value in given.items()})
        lengths = qo_indptr[1:] - qo_indptr[:-1]
        longest = int(lengths.max()) if lengths.numel() else 0
        if self._graph and self._starts is not None and longest > self._longest:
            raise ValueError(f"qo_indptr has a request of {longest} queries; up to {self._longest} are accepted, as many as "
                             "the first plan's longest had, which a captured run is bound to")
        spare = torch.clamp(kv_indptr[1:] - kv_indptr[:-1] - 1, min=0).to(kv_len_arr.device) * page_size
        self._pages.plan(kv_indptr, kv_indices, kv_len_arr - spare, page_size)
        starts = qo_indptr.to(self._pages.lengths.device, torch.int32)
        if self._graph and self._starts is not None:
            self._starts.copy_(starts)
        else:
            self._starts, self._longest = starts, longest
        self._dims, self._causal, self._scale = (num_heads, head_dim_ckv, head_dim_kpe), causal, sm_scale

    @names_arguments
    def run(self, q_nope: torch.Tensor, q_pe: torch.Tensor, ckv_cache: torch.Tensor, kpe_cache: torch.Tensor,
            out: Given = None, lse: Given = None, return_lse: bool = False, profiler_buffer: Any = None,
            kv_len: Any = None, page_table: Any = None, return_lse_base_on_e: bool = False) -> Any:
        """q_nope [rows, heads, latent] and q_pe [rows, heads, rope]. Returns out [rows, heads, latent]; with return_lse
        (out, lse [rows, heads]), lse in base 2 unless return_lse_base_on_e."""
        if self._starts is None:
            raise RuntimeError("run() is called before plan()")
        refuse(profiler_buffer=profiler_buffer, kv_len=kv_len, page_table=page_table)
        self._check(q_nope=q_nope, q_pe=q_pe, ckv_cache=ckv_cache, kpe_cache=kpe_cache)
        q, cache = joined(q_nope, q_pe), joined(ckv_cache, kpe_cache)  # one tensor takes the kernels fewer registers
        keys = (ckv_cache if cache is None else cache).unsqueeze(2)
        found, logs = serving.varlen_func(
            q_nope if q is None else q, keys, keys[..., :self._dims[1]], self._starts, None, self._longest,
            self._pages.most_keys(keys.shape[1]), seqused_k=self._pages.lengths, page_table=self._pages.pages,
            page_starts=self._pages.starts, softmax_scale=self._scale, causal=self._causal, out=out,
            return_softmax_lse=True, q_rest=q_pe if q is None else None,
            k_rest=kpe_cache.unsqueeze(2) if cache is None else None)
        if not return_lse:
            return found
        logs = logs.transpose(0, 1) * (1.0 if return_lse_base_on_e else LOG2_E)
        return found, logs if lse is None else lse.copy_(logs)

    def _check(self, **given: torch.Tensor) -> None:
        heads, latent, rope = self._dims
        for name, x in given.items():
            ends = ((heads,) if name.startswith("q_") else ()) + (latent if name in ("q_nope", "ckv_cache") else rope,)
            if x.dim() != 3 or tuple(x.shape[3 - len(ends):]) != ends:
                wanted = ", ".join(str(extent) for extent in ends)
                raise ValueError(f"{name} has shape {list(x.shape)}; [{'rows' if len(ends) == 2 else 'pages, page_size'}, "
                                 f"{wanted}] is accepted, as planned")
        for name, of in (("q_pe", "q_nope"), ("kpe_cache", "ckv_cache")):
            if given[name].shape[:2] != given[of].shape[:2]:
                raise ValueError(f"{name} has shape {list(given[name].shape)}, and {of} {list(given[of].shape)}; equal extents "
                                 "but for the last one are accepted")
