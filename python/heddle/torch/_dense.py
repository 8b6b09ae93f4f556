"""Mods as dense tensors: where an operation has no expression and the caller allows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import torch
from torch.nn.attention import flex_attention as flex

from ._private_names import needed

_allowed: ContextVar[bool] = ContextVar("heddle_dense", default=False)


def is_allowed() -> bool:
    return _allowed.get()


@contextlib.contextmanager
def allow_dense() -> Iterator[None]:
    """In the block of this `with`, torch computes mods with an operation that has no expression, before attention.

    - A score_mod becomes a bias [B, H, L, S]. It must add to the score and do nothing else with it, else ValueError.
    - A mask_mod becomes a bool tensor [B, H, L, S].

    Both take the time and the memory of the whole score matrix. Outside of the block such a mod is an error.

    >>> import torch, heddle.torch
    >>> q = torch.randn(1, 1, 4, 8)
    >>> rank = lambda score, b, h, q_idx, kv_idx: score + torch.sort(torch.stack([q_idx, kv_idx]))[0][0]
    >>> with heddle.torch.allow_dense():
    ...     heddle.torch.flex_attention(q, q, q, rank).shape
    torch.Size([1, 1, 4, 8])
    """
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def bias(score_mod: Callable[..., torch.Tensor], query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """[B, H, L, S], f32 (f64 for f64): what score_mod adds. Raises ValueError if it does anything else to a score."""
    shape = (*query.shape[:3], key.shape[2])
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    of_zero = _evaluated(score_mod, torch.zeros(shape, dtype=dtype, device=query.device))  # with its gradients
    with torch.no_grad():
        some = 4 * torch.randn(shape, dtype=dtype, device=query.device)
        of_some = _evaluated(score_mod, some)
        added = (of_some - of_zero - some).abs() <= 1e-5 * (1 + of_zero.abs() + some.abs())
        is_bias = bool((added | of_zero.isinf() & (of_zero == of_some)).all())
    if not is_bias:
        raise ValueError("score_mod has an operation without an expression, and does more to a score than adding to "
                         "it: it cannot become a dense bias")
    return of_zero


def _evaluated(score_mod: Callable[..., torch.Tensor], scores: torch.Tensor) -> torch.Tensor:
    with needed("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")():
        mapped = needed(flex.__name__, "_vmap_for_bhqkv")(score_mod, prefix=(0,))
        made: torch.Tensor = mapped(scores, *(torch.arange(extent, device=scores.device) for extent in scores.shape))
    return made


def mask(
    mask_mod: Callable[..., torch.Tensor], batch: int | None, heads: int | None, q_len: int, kv_len: int,
    device: torch.device,
) -> Callable[..., torch.Tensor]:
    """A mask_mod that reads the dense mask of another one."""
    allowed = flex.create_mask(mask_mod, batch, heads, q_len, kv_len, device)
    one_batch, one_head = batch in (None, 1), heads in (None, 1)

    def dense_mask(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return allowed[b * (not one_batch), h * (not one_head), q_idx, kv_idx]

    return dense_mask
