"""heddle as one of torch's flash-attention implementations (torch.nn.attention.activate_flash_attention_impl)."""

from __future__ import annotations

from typing import Any

import torch

from . import _forms
from ._run import Call, attend
from ._sdpa import set_window

NAME = "heddle"


def _call(scale: float | None, dropout_p: float, device: torch.device) -> Call:
    call = Call(scale=scale, with_lse=True)
    if dropout_p > 0.0:
        call.set_dropout(dropout_p, device)
    return call


def _unused(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """rng_state and another one that torch's schema has."""
    return like.new_zeros((2,), dtype=torch.uint64), like.new_empty((), dtype=torch.uint64)


def sdpa_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:
    """aten::_scaled_dot_product_flash_attention."""
    call = _call(scale, dropout_p, query.device)
    call.mask = _forms.CAUSAL if is_causal else None
    out, lse = attend(query, key, value, call)
    empty = query.new_empty((0,), dtype=torch.int32)
    return out, lse, empty, empty, query.shape[2], key.shape[2], *_unused(query), query.new_empty((0,))


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    return_debug_mask: bool, *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: torch.Tensor | None = None, alibi_slopes: torch.Tensor | None = None,
) -> tuple[Any, ...]:
    """aten::_flash_attention_forward: [B, S, H, D], or packed [T, H, D] with cumulative lengths."""
    call = _call(scale, dropout_p, query.device)
    left = -1 if window_size_left is None else window_size_left
    right = 0 if is_causal else -1 if window_size_right is None else window_size_right
    set_window(call, (left, right))
    if alibi_slopes is not None:
        batch = "b, " if alibi_slopes.dim() == 2 else ""
        call.score = f"score - alibi_slopes[{batch}h] * abs(q_idx + ({_forms.SHIFT}) - kv_idx)"
        call.captures["alibi_slopes"] = alibi_slopes
    packed = cum_seq_q is not None
    if cum_seq_q is not None and cum_seq_k is not None:
        call.tensors = {"cu_seqlens_q": cum_seq_q, "cu_seqlens_kv": cum_seq_k}
        call.max_q_len, call.max_kv_len = max_q, max_k
    elif seqused_k is not None:
        call.tensors = {"kv_lengths": seqused_k}
    views = [(x.unsqueeze(0) if packed else x).transpose(1, 2) for x in (query, key, value)]
    out, lse = attend(views[0], views[1], views[2], call)
    out = out.transpose(1, 2)
    if packed and lse is not None:
        out, lse = out.squeeze(0), lse.squeeze(0)
    return out, lse, *_unused(query), query.new_empty((0,))


class Handle:
    """While it lives torch's operators lead here."""

    def __init__(self) -> None:
        library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        self._library: torch.library.Library | None = library
        for name, function in (("_scaled_dot_product_flash_attention", sdpa_forward),
                               ("_flash_attention_forward", forward)):
            for device in ("CUDA", "CPU"):
                library.impl(name, function, device)  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Gives torch's operators back."""
        if self._library is not None:
            self._library._destroy()  # type: ignore[no-untyped-call]
            self._library = None


def register() -> None:
    """Makes torch.nn.attention.activate_flash_attention_impl("heddle") known; it changes nothing by itself."""
    try:
        from torch.nn.attention import register_flash_attention_impl
    except ImportError:  # before torch 2.11
        return
    register_flash_attention_impl(NAME, register_fn=Handle)

