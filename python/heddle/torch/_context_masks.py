"""Masks over a whole sequence, as text in global indices: from mask functions, block masks and cumulative lengths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

import heddle

from . import _forms
from ._block_lists import BoundMask, dense
from ._block_mask import BlockMask
from ._call import Numbers, Tensors, parsed, type_of
from ._context_group import word_of_content
from ._context_positions import SIDES, by_table
from ._exact import refuse_wide
from ._flex import is_no_mask
from .._dtypes import dtype_name

# Heads of a group -> all heads. No name that tracing gives begins with an underscore.
HEAD = "(h + _first_head)"
KINDS = "_kinds"  # of lists of blocks: 0 empty, 1 partial, 2 full


def in_global_indices(text: str, with_heads: bool) -> str:
    """A mod of global indices as one of local indices, which reads positions from tables, and with_heads the param
    _first_head."""
    return with_indices(text, {**{side.leaf: by_table(side) for side in SIDES}, **({"h": HEAD} if with_heads else {})})


def with_indices(text: str, names: dict[str, str]) -> str:
    """A mod with other expressions for its indices."""
    return re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[0]], text)


def expression(text: str, captures: Tensors, params: Numbers) -> Any:
    return parsed(text, tuple([(name, (dtype_name(x), x.dim())) for name, x in captures.items()]),
                  tuple([(name, type_of(number)) for name, number in params.items()]))


class GlobalMask:
    """A mask over all queries and keys of a sequence. `text` is None where everything attends."""

    def __init__(self, text: str | None, captures: Tensors, params: Numbers, scope: tuple[int, int, int, int]) -> None:
        self.text, self.captures, self.params = text, captures, params
        self.batch, self.heads, self.q_len, self.kv_len = scope
        self._stated: tuple[Any, ...] | None = None

    def core(self, block: int) -> heddle.BlockMask:
        """Its blocks, of `block` queries and keys. Copies captures to the CPU."""
        on_cpu = {name: x.detach().cpu() for name, x in self.captures.items()}
        expr = None if self.text is None else expression(self.text, self.captures, self.params)
        return heddle.BlockMask.build(
            expr, self.q_len, self.kv_len, batch=self.batch, heads=self.heads, block=block, captures=on_cpu,
            params=self.params, clamp_reads=True)

    def stated(self) -> tuple[Any, ...]:
        """All that it depends on, for ranks to compare. Reads its captures, once."""
        if self._stated is None:
            contents = [(name, word_of_content(x)) for name, x in sorted(self.captures.items())]
            self._stated = (self.text, sorted(self.params.items()), self.batch, self.heads, self.q_len, self.kv_len,
                            contents)
        return self._stated


def mask_of(
    given: Any, sizes: tuple[int | None, int | None], scope: tuple[int, int], device: torch.device
) -> GlobalMask:
    """The mask that a user gives: None, a mask function, or a block mask of heddle's or torch's.

    `sizes`: q_len and kv_len, needed where no block mask has them. `scope`: batch and heads of a function's indices.
    """
    if isinstance(given, flex.BlockMask):
        made = of_block_mask(given)
        for name, wanted, has in (("q_len", sizes[0], made.q_len), ("kv_len", sizes[1], made.kv_len)):
            if wanted is not None and wanted != has:
                raise ValueError(f"{name} is {wanted}, and the block mask's is {has}; the same is accepted")
        return made
    if sizes[0] is None:
        raise ValueError("q_len is None, and no block mask has it; the number of queries of the whole sequence is "
                         "accepted")
    q_len, kv_len = sizes[0], sizes[0] if sizes[1] is None else sizes[1]
    if q_len < 0 or kv_len < 0:
        raise ValueError(f"q_len is {q_len} and kv_len {kv_len}; 0 and more are accepted")
    if given is None:
        return GlobalMask(None, {}, {}, (1, 1, q_len, kv_len))
    if not callable(given):
        raise TypeError(f"block_mask is {type(given).__name__}; a block mask, a function (b, h, q_idx, kv_idx), a "
                        "list of them and None are accepted")
    bound = BoundMask(given, device)
    refuse_wide(bound.expr, (*scope, q_len, kv_len), bound.params)
    return GlobalMask(str(bound.expr), bound.captures, bound.params, (*scope, q_len, kv_len))


def of_block_mask(mask: flex.BlockMask) -> GlobalMask:
    shape = (1, 1, *mask.shape)
    scope = shape[-4], shape[-3], shape[-2], shape[-1]
    if is_no_mask(mask):
        return GlobalMask(None, {}, {}, (1, 1, *scope[2:]))
    lazy = mask._lazy if isinstance(mask, BlockMask) else None
    if lazy is not None:
        refuse_wide(lazy.mask.expr, scope, lazy.mask.params)
        return GlobalMask(str(lazy.mask.expr), lazy.mask.captures, lazy.mask.params, scope)
    return of_lists(mask, scope)


def of_lists(mask: flex.BlockMask, scope: tuple[int, int, int, int]) -> GlobalMask:
    """Lists as a table of kinds that the mask reads: rows of queries on other ranks need the lists' blocks cut anew."""
    bound = BoundMask(mask.mask_mod, mask.kv_num_blocks.device)
    refuse_wide(bound.expr, scope, bound.params)
    kinds = dense(mask.kv_num_blocks, mask.kv_indices).to(torch.uint8)
    if mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None:
        kinds += 2 * dense(mask.full_kv_num_blocks, mask.full_kv_indices).to(torch.uint8)
    kinds = kinds.reshape((1,) * (4 - kinds.dim()) + tuple(kinds.shape))
    index = ", ".join("0" if kinds.shape[axis] == 1 else name for axis, name in ((0, "b"), (1, "h")))
    read = f"{KINDS}[{index}, q_idx // {mask.BLOCK_SIZE[0]}, kv_idx // {mask.BLOCK_SIZE[1]}]"
    text = f"{read} == 2 or {read} == 1 and ({bound.expr})"
    return GlobalMask(text, {**bound.captures, KINDS: kinds}, bound.params, scope)


def in_documents(mask: GlobalMask, cu_seqlens: torch.Tensor) -> GlobalMask:
    """The mask inside of documents, which cumulative lengths [N + 1] bound: no query reads a key of another one.

    Raises ValueError for lengths that do not cover the sequence, and for as many keys as there are not queries.
    """
    if mask.q_len != mask.kv_len:
        raise ValueError(f"cu_seqlens is given, and there are {mask.q_len} queries and {mask.kv_len} keys; equal "
                         "numbers are accepted")
    bounds = cu_seqlens.detach().cpu()
    if bounds.dim() != 1 or bounds.numel() < 1 or bounds.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens is {bounds.dtype} {list(bounds.shape)}; i32 or i64 [N + 1] is accepted")
    lengths = bounds.diff()
    if int(bounds[0]) != 0 or int(bounds[-1]) != mask.q_len or bool((lengths < 0).any()):
        raise ValueError(f"cu_seqlens goes from {int(bounds[0])} to {int(bounds[-1])}; lengths that never decrease, "
                         f"from 0 to {mask.q_len}, are accepted")
    ids = torch.repeat_interleave(torch.arange(lengths.numel(), dtype=torch.int32), lengths).to(cu_seqlens.device)
    inside = "_documents[q_idx] == _documents[kv_idx]"
    text = inside if mask.text is None else _forms.all_of(mask.text, inside)
    scope = mask.batch, mask.heads, mask.q_len, mask.kv_len
    return GlobalMask(text, {**mask.captures, "_documents": ids}, mask.params, scope)


def listed(given: Any) -> Sequence[Any]:
    return given if isinstance(given, (list, tuple)) else [given]
