"""Attention of serving engines, in the shape of FlashInfer's wrappers and functions: page tables as indptr, indices and
last_page_len, plan() before run().

A module that imports these names from flashinfer can import them from here. What they take is taken, or refused by
name. lse is in base 2, as FlashInfer's. Workspace buffers are not needed, and backends are heddle's.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _core
from . import serving
from ._named_tensors import names_arguments, require_axes
from ._page_lists import (
    PageLists, append_paged_kv_cache, caches_of, get_batch_indices_positions, get_seq_lens, heads_last,
    require_layout)
from ._cascade import MultiLevelCascadeAttentionWrapper
from ._flashinfer_masks import beside_window
from ._flashinfer_names import OlderNames
from ._flashinfer_states import LOG2_E, merge_state, merge_state_in_place, merge_states
from ._latent import BatchMLAPagedAttentionWrapper, refuse as _refuse

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper", "BatchMLAPagedAttentionWrapper", "BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper",
    "MultiLevelCascadeAttentionWrapper", "append_paged_kv_cache", "get_batch_indices_positions", "get_seq_lens", "merge_state", "merge_state_in_place",
    "merge_states", "single_decode_with_kv_cache", "single_prefill_with_kv_cache",
    "single_prefill_with_kv_cache_return_lse",
]

Scale = float | torch.Tensor | None
# Arguments of plan() that say how FlashInfer splits and sizes its work, which each run here decides on the device.
SCHEDULING = {"block_tables", "seq_lens", "seq_lens_q", "fixed_split_size", "disable_split_kv", "max_item_len_ptr",
              "token_pos_in_items_len", "max_token_per_sequence", "max_sequence_kv", "max_kv_len", "max_q_len",
              "global_override_indptr_cpu"}
Bounds = torch.Tensor | None


class _Options:
    """What plan() and run() say about the scores."""

    def __init__(self, heads: int, head_dim: int, causal: bool, pos_encoding_mode: str, window_left: int,
                 logits_soft_cap: float | None, sm_scale: float | None) -> None:
        if pos_encoding_mode not in ("NONE", "ALIBI"):
            raise ValueError(f"pos_encoding_mode is {pos_encoding_mode!r}; 'NONE' and 'ALIBI' are accepted, and "
                             "serving.append() turns new rows by a rotary embedding")
        self.heads, self.head_dim, self.causal, self.window_left = heads, head_dim, causal, window_left
        self.alibi = pos_encoding_mode == "ALIBI"
        self.softcap = logits_soft_cap if logits_soft_cap and logits_soft_cap > 0.0 else 0.0  # FlashInfer's negative: none
        self.scale = head_dim**-0.5 if sm_scale is None else sm_scale
        self._score_mod: Any = None  # made by the first run: its slopes are on the device of q

    def arguments(self, device: torch.device, window_left: int | None, mask_mod: Any, q_scale: Scale, k_scale: Scale,
                  sinks: torch.Tensor | None) -> dict[str, Any]:
        """As serving's functions take them."""
        scale = self.scale
        for name, factor in (("q_scale", q_scale), ("k_scale", k_scale)):
            if isinstance(factor, torch.Tensor) and factor.device.type != "cpu":
                raise ValueError(f"{name} is a tensor on {factor.device}, whose value a call would wait for; a number is "
                                 "accepted")
            scale *= 1.0 if factor is None else float(factor)
        left = self.window_left if window_left is None else window_left
        made = {"softmax_scale": scale, "sinks": sinks, "return_softmax_lse": True}
        if self.alibi:
            made["score_mod"] = self._score_mod = self._score_mod or self._alibi(device)
        else:
            made["softcap"] = self.softcap
        if mask_mod is not None:
            return {**made, "mask_mod": mask_mod(left)}
        return {**made, "causal": self.causal, "window_size": (left, -1)}

    def anew(self, causal: bool, pos_encoding_mode: str, window_left: int, logits_soft_cap: float | None,
             sm_scale: float | None) -> _Options:
        """Those of forward() in place of plan()'s."""
        return _Options(self.heads, self.head_dim, causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)

    def _alibi(self, device: torch.device) -> Any:
        slopes, softcap = torch.from_numpy(_core.alibi_slopes(self.heads)).to(device), self.softcap

        def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            score = score + slopes[h] * (kv_idx - q_idx)  # both from 0 on in each request: lse and softcap show it
            return softcap * torch.tanh(score / softcap) if softcap else score

        return score_mod


def _finished(results: tuple[torch.Tensor, torch.Tensor], lse_last: bool, v_scale: Scale, lse: torch.Tensor | None,
              return_lse: bool) -> Any:
    """out, or (out, lse) with lse [rows, heads] in base 2."""
    out, found = results
    if v_scale is not None:
        out.mul_(v_scale)
    if not return_lse:
        return out
    found = (found if lse_last else found.transpose(0, 1)) * LOG2_E
    return out, found if lse is None else lse.copy_(found)


class _Wrapper(OlderNames):
    """What all wrappers share: their options, and what was planned."""

    def __init__(self, kv_layout: str) -> None:
        require_layout(kv_layout)
        self._kv_layout = kv_layout
        self._options: _Options | None = None
        self._o_dtype: torch.dtype | None = None

    def _planned(self) -> _Options:
        if self._options is None:
            raise RuntimeError("run() is called before plan()")
        return self._options

    def _set_o_dtype(self, given: torch.dtype | str | None) -> None:
        self._o_dtype = getattr(torch, given) if isinstance(given, str) else given

    def _out(self, out: torch.Tensor | None, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor | None:
        """Where run() writes. None: a new tensor of q's type."""
        if out is not None or self._o_dtype in (None, q.dtype):
            return out
        return torch.empty(*q.shape[:-1], v.shape[-1], dtype=self._o_dtype, device=q.device)


def _check_scheduling(given: dict[str, Any]) -> None:
    for name in given:
        if name not in SCHEDULING:
            raise TypeError(f"plan() got an unexpected keyword argument '{name}'")


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """Decoding over a paged cache, with q_len_per_req queries for each request (default 1).

    With use_cuda_graph the list of pages and the lengths keep their addresses: plan() writes into them, and a graph
    that captured run() uses the values of the last plan(). paged_kv_indices_buffer then bounds the pages of all
    requests.

    >>> import torch
    >>> from heddle.torch import flashinfer
    >>> wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(None, "NHD")
    >>> indptr, indices, last = (torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 3], [0, 3, 1], [5, 16]))
    >>> wrapper.plan(indptr, indices, last, 4, 2, 8, 16)
    >>> wrapper.run(torch.randn(2, 4, 8), torch.randn(4, 2, 16, 2, 8)).shape
    torch.Size([2, 4, 8])
    """

    def __init__(self, float_workspace_buffer: torch.Tensor | None = None, kv_layout: str = "NHD",
                 use_cuda_graph: bool = False, use_tensor_cores: bool = False,
                 paged_kv_indptr_buffer: Bounds = None, paged_kv_indices_buffer: Bounds = None,
                 paged_kv_last_page_len_buffer: Bounds = None, backend: str = "auto", jit_args: Any = None) -> None:
        super().__init__(kv_layout)
        _refuse(jit_args=jit_args)
        self._pages = PageLists(use_cuda_graph, paged_kv_indptr_buffer, paged_kv_indices_buffer)
        self._graph = use_cuda_graph

    @names_arguments
    def plan(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, num_qo_heads: int,
             num_kv_heads: int, head_dim: int, page_size: int, pos_encoding_mode: str = "NONE", window_left: int = -1,
             logits_soft_cap: float | None = None, q_data_type: Any = None, kv_data_type: Any = None,
             o_data_type: Any = None, data_type: Any = None, sm_scale: float | None = None,
             rope_scale: float | None = None, rope_theta: float | None = None, non_blocking: bool = True,
             **scheduling: Any) -> None:
        """Request b has the pages indices[indptr[b] : indptr[b + 1]], the last one with last_page_len[b] rows.

        Types follow from run()'s tensors. How work is split (`scheduling`) is decided on the device in each run.
        Raises ValueError for 'ROPE_LLAMA', a rotary embedding inside of attention.
        """
        _check_scheduling(scheduling)
        self._set_o_dtype(o_data_type)
        self._options = _Options(num_qo_heads, head_dim, False, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        self._pages.plan(indptr, indices, last_page_len, page_size)

    begin_forward = plan

    @names_arguments
    def run(self, q: torch.Tensor, paged_kv_cache: Any, *args: Any, q_scale: Scale = None, k_scale: Scale = None,
            v_scale: Scale = None, out: torch.Tensor | None = None, lse: torch.Tensor | None = None,
            return_lse: bool = False, enable_pdl: bool | None = None, window_left: int | None = None,
            sinks: torch.Tensor | None = None, q_len_per_req: int = 1) -> Any:
        """q [B q_len_per_req, Hq, D]; paged_kv_cache: (k, v), or one tensor with both along its second axis. Several
        queries of a request see the keys up to their own. Returns out, or with return_lse (out, lse [rows, Hq])."""
        _refuse(args=args or None)
        options = self._planned()
        k, v = caches_of(paged_kv_cache, self._kv_layout)
        out = self._out(out, q, v)
        options.causal = q_len_per_req > 1
        shape = -1, q_len_per_req, *q.shape[1:]
        found, logs = serving.with_kvcache(
            q.reshape(shape), k, v, cache_seqlens=self._pages.lengths, page_table=self._pages.pages,
            page_starts=self._pages.starts, max_seqlen_k=self._pages.most_keys(k.shape[1]),
            out=None if out is None else out.view(*shape[:3], v.shape[-1]),
            **options.arguments(q.device, window_left, None, q_scale, k_scale, sinks))
        rows = found.reshape(q.shape[0], *found.shape[2:]), logs.transpose(1, 2).reshape(q.shape[0], q.shape[1])
        return _finished((rows[0] if out is None else out, rows[1]), True, v_scale, lse, return_lse)


class _Prefill(_Wrapper):
    """Packed queries of several lengths."""

    def _plan(self, qo_indptr: torch.Tensor, options: _Options, causal: bool, kv_lengths: torch.Tensor,
              custom_mask: torch.Tensor | None, packed_custom_mask: torch.Tensor | None) -> None:
        self._options = options
        lengths = qo_indptr[1:] - qo_indptr[:-1]
        self._longest = int(lengths.max()) if lengths.numel() else 0
        self._starts = qo_indptr.to(torch.int32)
        self._mask_mod = None
        if custom_mask is not None or packed_custom_mask is not None:
            self._mask_mod = beside_window(lengths, kv_lengths, custom_mask, packed_custom_mask)

    def _arguments(self, q: torch.Tensor, window_left: int | None, q_scale: Scale, k_scale: Scale,
                   sinks: torch.Tensor | None) -> dict[str, Any]:
        return self._planned().arguments(q.device, window_left, self._mask_mod, q_scale, k_scale, sinks)


class BatchPrefillWithPagedKVCacheWrapper(_Prefill):
    """Queries of several lengths over a paged cache, each request's last query aligned with its last key.

    >>> import torch
    >>> from heddle.torch import flashinfer
    >>> wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper()
    >>> indptr, indices, last = (torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 3], [0, 3, 1], [5, 16]))
    >>> wrapper.plan(torch.tensor([0, 7, 9]), indptr, indices, last, 4, 2, 8, 16, causal=True)
    >>> wrapper.run(torch.randn(9, 4, 8), torch.randn(4, 2, 16, 2, 8)).shape
    torch.Size([9, 4, 8])
    """

    def __init__(self, float_workspace_buffer: torch.Tensor | None = None, kv_layout: str = "NHD",
                 use_cuda_graph: bool = False, qo_indptr_buf: Bounds = None, paged_kv_indptr_buf: Bounds = None,
                 paged_kv_indices_buf: Bounds = None, paged_kv_last_page_len_buf: Bounds = None,
                 custom_mask_buf: Bounds = None, mask_indptr_buf: Bounds = None, backend: str = "auto",
                 jit_args: Any = None) -> None:
        super().__init__(kv_layout)
        _refuse(jit_args=jit_args, custom_mask_buf=custom_mask_buf)
        self._pages = PageLists(use_cuda_graph, paged_kv_indptr_buf, paged_kv_indices_buf)
        self._graph = use_cuda_graph

    @names_arguments
    def plan(self, qo_indptr: torch.Tensor, paged_kv_indptr: torch.Tensor, paged_kv_indices: torch.Tensor,
             paged_kv_last_page_len: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
             page_size: int, head_dim_vo: int | None = None, custom_mask: torch.Tensor | None = None,
             packed_custom_mask: torch.Tensor | None = None, causal: bool = False, pos_encoding_mode: str = "NONE",
             use_fp16_qk_reduction: bool = False, sm_scale: float | None = None, window_left: int = -1,
             logits_soft_cap: float | None = None, rope_scale: float | None = None, rope_theta: float | None = None,
             q_data_type: Any = None, kv_data_type: Any = None, o_data_type: Any = None, non_blocking: bool = True,
             prefix_len_ptr: Any = None, token_pos_in_items_ptr: Any = None, **scheduling: Any) -> None:
        """Request b has the queries from qo_indptr[b] on, and the pages paged_kv_indices[paged_kv_indptr[b] :
        paged_kv_indptr[b + 1]]. custom_mask [pairs of all requests] takes the place of causal. Waits for qo_indptr if it
        is on a GPU: the longest request bounds each run's work."""
        _check_scheduling(scheduling)
        self._set_o_dtype(o_data_type)
        _refuse(prefix_len_ptr=prefix_len_ptr, token_pos_in_items_ptr=token_pos_in_items_ptr)
        self._pages.plan(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        options = _Options(num_qo_heads, head_dim_qk, causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        if self._graph:  # a graph would go on reading the mask that it was captured with
            _refuse(custom_mask=custom_mask, packed_custom_mask=packed_custom_mask)
        before = self._starts if self._graph and hasattr(self, "_starts") else None
        self._plan(qo_indptr.to(self._pages.lengths.device), options, causal, self._pages.lengths, custom_mask,
                   packed_custom_mask)
        if before is not None:  # of as many requests, since the buffers have them
            self._starts = before.copy_(self._starts)

    begin_forward = plan

    @names_arguments
    def run(self, q: torch.Tensor, paged_kv_cache: Any, *args: Any, q_scale: Scale = None, k_scale: Scale = None,
            v_scale: Scale = None, out: torch.Tensor | None = None, lse: torch.Tensor | None = None,
            return_lse: bool = False, enable_pdl: bool | None = None, window_left: int | None = None,
            sinks: torch.Tensor | None = None) -> Any:
        """q [rows, Hq, D]. Returns out [rows, Hq, Dv], or with return_lse (out, lse [rows, Hq])."""
        _refuse(args=args or None)
        arguments = self._arguments(q, window_left, q_scale, k_scale, sinks)
        k, v = caches_of(paged_kv_cache, self._kv_layout)
        out = self._out(out, q, v)
        longest = q.shape[0] if self._graph else self._longest
        results = serving.varlen_func(q, k, v, self._starts, None, longest, self._pages.most_keys(k.shape[1]),
                                      seqused_k=self._pages.lengths, page_table=self._pages.pages,
                                      page_starts=self._pages.starts, out=out, **arguments)
        return _finished(results, False, v_scale, lse, return_lse)


class BatchPrefillWithRaggedKVCacheWrapper(_Prefill):
    """Queries of several lengths over packed keys, each request's last query aligned with its last key.

    >>> import torch
    >>> from heddle.torch import flashinfer
    >>> wrapper, starts = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(), torch.tensor([0, 7, 9])
    >>> wrapper.plan(starts, starts, 2, 2, 8, causal=True)
    >>> q = torch.randn(9, 2, 8)
    >>> wrapper.run(q, q, q).shape
    torch.Size([9, 2, 8])
    """

    def __init__(self, float_workspace_buffer: torch.Tensor | None = None, kv_layout: str = "NHD",
                 use_cuda_graph: bool = False, qo_indptr_buf: Bounds = None, kv_indptr_buf: Bounds = None,
                 custom_mask_buf: Bounds = None, mask_indptr_buf: Bounds = None, backend: str = "auto",
                 jit_args: Any = None) -> None:
        super().__init__(kv_layout)
        _refuse(jit_args=jit_args, custom_mask_buf=custom_mask_buf, use_cuda_graph=use_cuda_graph)

    @names_arguments
    def plan(self, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, num_qo_heads: int, num_kv_heads: int,
             head_dim_qk: int, head_dim_vo: int | None = None, custom_mask: torch.Tensor | None = None,
             packed_custom_mask: torch.Tensor | None = None, causal: bool = False, pos_encoding_mode: str = "NONE",
             use_fp16_qk_reduction: bool = False, window_left: int = -1, logits_soft_cap: float | None = None,
             sm_scale: float | None = None, rope_scale: float | None = None, rope_theta: float | None = None,
             q_data_type: Any = None, kv_data_type: Any = None, o_data_type: Any = None, non_blocking: bool = True,
             prefix_len_ptr: Any = None, token_pos_in_items_ptr: Any = None, **scheduling: Any) -> None:
        """Request b has the queries from qo_indptr[b] on and the keys from kv_indptr[b] on. custom_mask [pairs of all
        requests] takes the place of causal. Waits for both if they are on a GPU."""
        _check_scheduling(scheduling)
        self._set_o_dtype(o_data_type)
        _refuse(prefix_len_ptr=prefix_len_ptr, token_pos_in_items_ptr=token_pos_in_items_ptr)
        kv_lengths = kv_indptr[1:] - kv_indptr[:-1]
        options = _Options(num_qo_heads, head_dim_qk, causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        self._plan(qo_indptr, options, causal, kv_lengths, custom_mask, packed_custom_mask)
        self._kv_starts = kv_indptr.to(torch.int32)
        self._most_keys = int(kv_lengths.max()) if kv_lengths.numel() else 0

    begin_forward = plan

    @names_arguments
    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, q_scale: Scale = None,
            k_scale: Scale = None, v_scale: Scale = None, out: torch.Tensor | None = None,
            lse: torch.Tensor | None = None, return_lse: bool = False, enable_pdl: bool | None = None,
            window_left: int | None = None, sinks: torch.Tensor | None = None) -> Any:
        """q [rows, Hq, D], k and v [keys, Hkv, D] (HND: [Hkv, keys, D]). Returns out, or with return_lse (out, lse
        [rows, Hq])."""
        _refuse(args=args or None)
        arguments = self._arguments(q, window_left, q_scale, k_scale, sinks)
        out = self._out(out, q, v)
        starts, kv_starts = self._starts.to(q.device), self._kv_starts.to(q.device)
        results = serving.varlen_func(q, heads_last(k, self._kv_layout), heads_last(v, self._kv_layout), starts, kv_starts,
                                      self._longest, self._most_keys, out=out, **arguments)
        return _finished(results, False, v_scale, lse, return_lse)


@names_arguments
def single_decode_with_kv_cache(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_layout: str = "NHD", pos_encoding_mode: str = "NONE",
    use_tensor_cores: bool = False, q_scale: Scale = None, k_scale: Scale = None, v_scale: Scale = None,
    window_left: int = -1, logits_soft_cap: float | None = None, sm_scale: float | None = None,
    rope_scale: float | None = None, rope_theta: float | None = None, return_lse: bool = False,
) -> Any:
    """One query [Hq, D] over k and v [S, Hkv, D] (HND: [Hkv, S, D]). Returns out [Hq, Dv], or (out, lse [Hq]).

    >>> import torch
    >>> from heddle.torch import flashinfer
    >>> flashinfer.single_decode_with_kv_cache(torch.randn(4, 8), torch.randn(9, 2, 8), torch.randn(9, 2, 8)).shape
    torch.Size([4, 8])
    """
    require_axes(2, q=q)
    found = single_prefill_with_kv_cache(
        q.unsqueeze(0), k, v, q_scale, k_scale, v_scale, kv_layout=kv_layout, pos_encoding_mode=pos_encoding_mode,
        window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale, return_lse=return_lse)
    return tuple(x.squeeze(0) for x in found) if return_lse else found.squeeze(0)


@names_arguments
def single_prefill_with_kv_cache(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale_q: Scale = None, scale_k: Scale = None,
    scale_v: Scale = None, o_dtype: torch.dtype | None = None, custom_mask: torch.Tensor | None = None,
    packed_custom_mask: torch.Tensor | None = None, causal: bool = False, kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, sm_scale: float | None = None,
    window_left: int = -1, logits_soft_cap: float | None = None, rope_scale: float | None = None,
    rope_theta: float | None = None, backend: str = "auto", return_lse: bool = False,
) -> Any:
    """Queries [L, Hq, D] over k and v [S, Hkv, D] (HND: [Hkv, S, D]), the last query aligned with the last key.
    custom_mask [L, S] takes the place of causal. Returns out [L, Hq, Dv]; with return_lse (out, lse [L, Hq])."""
    if o_dtype is not None and o_dtype != q.dtype:
        raise NotImplementedError(f"o_dtype is {o_dtype}; that of q, {q.dtype}, is accepted")
    require_axes(3, q=q, k=k, v=v)
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(None, kv_layout)
    keys = heads_last(k, kv_layout).shape[0]
    starts, kv_starts = (torch.tensor([0, rows], dtype=torch.int32, device="cpu") for rows in (q.shape[0], keys))
    mask = None if custom_mask is None else custom_mask.reshape(-1)
    wrapper.plan(starts, kv_starts, q.shape[1], heads_last(k, kv_layout).shape[1], q.shape[2], v.shape[-1], mask,
                 packed_custom_mask, causal, pos_encoding_mode, window_left=window_left, logits_soft_cap=logits_soft_cap,
                 sm_scale=sm_scale)
    return wrapper.run(q, k, v, q_scale=scale_q, k_scale=scale_k, v_scale=scale_v, return_lse=return_lse)


def single_prefill_with_kv_cache_return_lse(*tensors: Any, **given: Any) -> Any:
    """single_prefill_with_kv_cache() with return_lse: (out, lse)."""
    return single_prefill_with_kv_cache(*tensors, **{**given, "return_lse": True})
