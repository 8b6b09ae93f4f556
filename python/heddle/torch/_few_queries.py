"""Block masks of few queries behind a cache: where queries and keys begin stands in tensors, beside a mask function that
does not read it. So one plan, and one graph, serve all steps of a generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._block_lists import LateMask, LazyLists
from ._block_mask import DEFAULT_BLOCK, BlockMask, create_block_mask
from ._call import Call
from ._forms import padded_keys

MOST = 64  # queries; the masks of more skip blocks


class FewQueries:
    """What attention takes instead of the whole mask: `mask` counts queries from q_start and keys from kv_start, i32
    [B]; padding [B, keys] is False at keys that nobody sees."""

    def __init__(self, mask: BlockMask, q_start: torch.Tensor, kv_start: torch.Tensor | None,
                 padding: torch.Tensor | None) -> None:
        self.mask, self.q_start, self.kv_start, self.padding = mask, q_start, kv_start, padding

    def set(self, call: Call, score: str) -> str:
        """Sets the starts. Returns the score, -inf at padding: as a capture of the score, padding may be another tensor
        in each step, which a plan does not notice."""
        call.options["q_start"] = self.q_start
        if self.kv_start is not None:
            call.options["kv_start"] = self.kv_start
        if self.padding is None:
            return score
        call.captures["key_padding"] = self.padding
        return padded_keys(score)


def of(mask: Any) -> FewQueries | None:
    """What the mask holds beside its lists, unless these were changed by hand."""
    return getattr(mask, "few_queries", None) if getattr(mask, "_made_by", None) is not None else None


def start(given: Any, batch: int, device: Any) -> torch.Tensor:
    """The number or one-element tensor for all sequences, i32 [batch]; later changes in place do not reach it."""
    if not isinstance(given, torch.Tensor):
        return torch.full((batch,), given, dtype=torch.int32, device=device)
    return given.reshape(1).to(device, torch.int32, copy=True).expand(batch)


def block_mask(
    bare: Callable[..., Any], whole: Callable[..., Any], sizes: tuple[int, int, int], q_offset: Any, kv_offset: Any,
    padding: torch.Tensor | None, device: Any,
) -> BlockMask:
    """The block mask of `whole`, traced when it is first read, over scores [B, 1, queries, keys]. few_queries of it holds
    `bare`, which reads neither offsets nor padding."""
    batch, queries, keys = sizes
    lazy = LazyLists(LateMask(whole, torch.device(device)), batch, 1, (queries, keys), (DEFAULT_BLOCK, DEFAULT_BLOCK),
                     torch.device(device))
    made = BlockMask._of(lazy, whole)
    kv_start = None if isinstance(kv_offset, int) and kv_offset == 0 else start(kv_offset, batch, device)
    made.few_queries = FewQueries(
        create_block_mask(bare, batch, None, queries, keys, device), start(q_offset, batch, device), kv_start, padding)
    return made
