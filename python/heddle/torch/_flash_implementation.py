"""heddle as one of torch's flash-attention implementations (torch.nn.attention.activate_flash_attention_impl)."""

from __future__ import annotations

from typing import Any

import torch

from . import _forms
from ._call import Call
from ._dispatch import attend
from ._eager_backward import Results, Wanted, backward
from ._varlen import refuse_splits, set_keys, set_queries, set_window

NAME = "heddle"
INPUTS = Wanted(True, True, True, False, ())


def _call(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, dropout_p: float,
    rng_state: torch.Tensor | None = None,
) -> Call:
    """`rng_state`: of the forward, for its backward."""
    call = Call(query, key, value, scale, with_lse=True)
    if dropout_p > 0.0:
        call.set_dropout(dropout_p)
        if rng_state is not None and "dropout_seed" in call.captures:
            call.captures["dropout_seed"] = rng_state.view(torch.int64)[0]
    return call


def _states(call: Call, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """rng_state, which holds the seed, and another one that torch's schema has."""
    state = like.new_zeros((2,), dtype=torch.int64)
    if "dropout_seed" in call.captures:
        state[0] = call.captures["dropout_seed"]
    return state.view(torch.uint64), like.new_empty((), dtype=torch.uint64)


def sdpa_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:
    """aten::_scaled_dot_product_flash_attention."""
    call = _call(query, key, value, scale, dropout_p)
    call.mask = _forms.CAUSAL if is_causal else None
    with torch.no_grad():  # autograd calls the operators of the backward
        out, lse = attend(call)
    empty = query.new_empty((0,), dtype=torch.int32)
    return out, lse, empty, empty, query.shape[2], key.shape[2], *_states(call, query), query.new_empty((0,))


def sdpa_backward(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    logsumexp: torch.Tensor, cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float,
    is_causal: bool, philox_seed: torch.Tensor, philox_offset: torch.Tensor, *, scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """aten::_scaled_dot_product_flash_attention_backward."""
    call = _call(query, key, value, scale, dropout_p, philox_seed)
    call.mask = _forms.CAUSAL if is_causal else None
    with torch.no_grad():
        return tuple(backward(call, Results(out, logsumexp, None, grad_out, None), INPUTS))


def _window(is_causal: bool, left: int | None, right: int | None) -> tuple[int, int]:
    return -1 if left is None else left, 0 if is_causal else -1 if right is None else right


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    return_debug_mask: bool, *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: torch.Tensor | None = None, alibi_slopes: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None, num_splits: int | None = None, out: torch.Tensor | None = None,
) -> tuple[Any, ...]:
    """aten::_flash_attention_forward: [B, S, H, D], or packed [T, H, D] with cumulative lengths, and with block_table
    keys and values in pages."""
    refuse_splits(num_splits)
    packed = cum_seq_q is not None
    q, k, v = (_heads_first(x, packed) for x in (query, key, value))
    call = _call(q, k, v, scale, dropout_p)
    set_window(call, _window(is_causal, window_size_left, window_size_right))
    if alibi_slopes is not None:
        batch = "b, " if alibi_slopes.dim() == 2 else ""
        call.score = f"score - alibi_slopes[{batch}h] * abs(q_idx + ({_forms.SHIFT}) - kv_idx)"
        call.captures["alibi_slopes"] = alibi_slopes
    if cum_seq_q is not None:
        set_queries(call, cum_seq_q, max_q)
        set_keys(call, key, value, cum_seq_k, max_k, seqused_k, block_table, ("cum_seq_k", "block_table"))
    elif block_table is not None:
        raise NotImplementedError("block_table is given without cum_seq_q; packed queries are accepted")
    elif seqused_k is not None:
        call.options = {"kv_lengths": seqused_k}
    is_lost = alibi_slopes is not None or seqused_k is not None
    if is_lost and torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        raise NotImplementedError("torch's operator does not hand alibi_slopes and seqused_k to its backward")
    call.out = None if out is None else _heads_first(out, packed)
    with torch.no_grad():
        made, lse = attend(call)
    made = made.transpose(1, 2)
    if packed and lse is not None:
        made, lse = made.squeeze(0), lse.squeeze(0)
    return made, lse, *_states(call, query), query.new_empty((0,))


def forward_into(out: torch.Tensor, *args: Any, **options: Any) -> Any:
    """aten::_flash_attention_forward_no_dropout_inplace: forward(), which writes `out` and returns lse."""
    return forward(*args, **options, out=out)[1]


def _heads_first(x: torch.Tensor, packed: bool) -> torch.Tensor:
    return (x.unsqueeze(0) if packed else x).transpose(1, 2)


def flash_backward(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    logsumexp: torch.Tensor, cum_seq_q: torch.Tensor | None, cum_seq_k: torch.Tensor | None, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, rng_state: torch.Tensor, unused: torch.Tensor, *, scale: float | None = None,
    window_size_left: int | None = None, window_size_right: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """aten::_flash_attention_backward."""
    packed = cum_seq_q is not None and cum_seq_q.numel() > 0
    with torch.no_grad():
        d_out, of_out, q, k, v = (_heads_first(x, packed) for x in (grad_out, out, query, key, value))
    call = _call(q, k, v, scale, dropout_p, rng_state)
    set_window(call, _window(is_causal, window_size_left, window_size_right))
    if packed and cum_seq_q is not None and cum_seq_k is not None:
        call.options = {"cu_seqlens_q": cum_seq_q, "cu_seqlens_kv": cum_seq_k}
        call.max_q_len, call.max_kv_len = max_q, max_k
    with torch.no_grad():
        lse = logsumexp.unsqueeze(0) if packed else logsumexp
        made = [x.transpose(1, 2) for x in backward(call, Results(of_out, lse, None, d_out, None), INPUTS)]
    return tuple([x.squeeze(0) if packed else x for x in made])


class Handle:
    """While it lives torch's operators lead here."""

    def __init__(self) -> None:
        library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        self._library: torch.library.Library | None = library
        for name, function in (("_scaled_dot_product_flash_attention", sdpa_forward),
                               ("_scaled_dot_product_flash_attention_backward", sdpa_backward),
                               ("_flash_attention_forward", forward),
                               ("_flash_attention_forward_no_dropout_inplace", forward_into),
                               ("_flash_attention_backward", flash_backward)):
            for device in ("CUDA", "CPU") if hasattr(torch.ops.aten, name) else ():
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

