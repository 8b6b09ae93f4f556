"""mask_mods made of other mask_mods, and which kind of mod a function is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

from .._mod import SCORE_MODS, Mod
from . import _mod_code
from ._block_lists import MaskMod


def noop_mask(batch: torch.Tensor, head: torch.Tensor, token_q: torch.Tensor, token_kv: torch.Tensor) -> torch.Tensor:
    """The mask_mod that is true everywhere: of a batch, a head, a token_q and a token_kv."""
    return batch.new_ones(size=(), dtype=torch.bool, device=batch.device)


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask_mod that is true where all of mask_mods are true. Without any it is true everywhere.

    Raises RuntimeError if one is not callable.

    >>> import heddle.torch
    >>> causal, window = lambda b, h, q, kv: q >= kv, lambda b, h, q, kv: q - kv < 128
    >>> mask = heddle.torch.create_block_mask(heddle.torch.and_masks(causal, window), None, None, 1024, 1024, "cpu")
    >>> mask.kv_num_blocks.sum()
    tensor(15)
    """
    return _joined(mask_mods, torch.Tensor.new_ones, torch.Tensor.__and__)


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask_mod that is true where any of mask_mods is true. Without any it is true nowhere.

    Raises RuntimeError if one is not callable.

    >>> import torch, heddle.torch
    >>> causal, prefix = lambda b, h, q, kv: q >= kv, lambda b, h, q, kv: kv < 3
    >>> heddle.torch.create_mask(heddle.torch.or_masks(causal, prefix), 1, 1, 4, 4, "cpu").to(torch.int8)
    tensor([[[[1, 1, 1, 0],
              [1, 1, 1, 0],
              [1, 1, 1, 0],
              [1, 1, 1, 1]]]], dtype=torch.int8)
    """
    return _joined(mask_mods, torch.Tensor.new_zeros, torch.Tensor.__or__)


def _joined(mask_mods: tuple[MaskMod, ...], empty: Any, join: Any) -> MaskMod:
    if not all(callable(one) for one in mask_mods):
        raise RuntimeError(f"All inputs should be callable mask_mods: {mask_mods}")

    def joined_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        result = empty(b, (), dtype=torch.bool)
        for mask in mask_mods:
            result = join(result, mask(b, h, q_idx, kv_idx))
        return result

    return joined_mask


def counted(mod: Callable[..., Any]) -> Callable[..., Any]:
    """The mod as torch counts its arguments rightly: of a bound method it counts the object, too."""
    if not inspect.ismethod(mod):
        return mod
    if mod_kind(mod) == 4:
        return lambda b, h, q_idx, kv_idx: mod(b, h, q_idx, kv_idx)
    return lambda score, b, h, q_idx, kv_idx: mod(score, b, h, q_idx, kv_idx)


def mod_kind(mod: Callable[..., Any]) -> int:
    """How many arguments it takes: 5 for a score_mod, 4 for a mask_mod."""
    if isinstance(mod, Mod) and mod.recipe is not None:
        return 5 if mod.recipe[0] in SCORE_MODS else 4
    try:
        if inspect.ismethod(mod):
            return count_of_method(mod)
        if not hasattr(flex, "_get_mod_type"):
            return positional_count(mod)
        kind = flex._get_mod_type(mod)
    except AssertionError as error:
        name = getattr(mod, "__qualname__", type(mod).__name__)
        raise AssertionError(f"{error}: {name} is given; a mask_mod (b, h, q_idx, kv_idx) or a score_mod (score, b, h, "
                             "q_idx, kv_idx) is accepted") from None
    return 5 if kind == flex._ModificationType.SCORE_MOD else 4


def positional_count(mod: Any) -> int:
    """How many arguments a mod takes without a default, where torch does not say."""
    taken = inspect.signature(mod).parameters.values()
    count = sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty for one in taken)
    if count not in (4, 5):
        raise AssertionError(f"Expected 4 or 5 positional args, got {count}")
    return count


def count_of_method(mod: Any) -> int:
    """How many arguments a bound method takes without a default."""
    count: int = mod.__code__.co_argcount - 1 - len(mod.__defaults__ or ())
    if count not in (4, 5):
        raise AssertionError(f"Expected 4 or 5 positional args, got {count}")
    return count
