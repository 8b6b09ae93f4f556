"""The library's block masks of torch's lists: counts and indices of the key blocks of each row of query blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import heddle

Sizes = Sequence[int]  # queries and keys of the whole, queries and keys of a block


def of_lists(lists: Sequence[torch.Tensor], sizes: Sizes, batch: int, heads: int, mask_mod: Any) -> heddle.BlockMask:
    """The block mask for scores of [batch, heads]. `lists`: counts and indices of partial blocks, and perhaps those of
    full blocks. Reads them on the CPU: on a GPU it waits."""
    arrays = [flat(x, 3 + i % 2) for i, x in enumerate(lists)]
    read = [one for i in range(0, len(arrays), 2) for one in without_unassigned(*arrays[i:i + 2])]
    q_len, kv_len, q_block, kv_block = sizes
    return heddle.BlockMask.from_lists(
        *read, q_len=q_len, kv_len=kv_len, batch=batch, heads=heads, block=(q_block, kv_block), mask_mod=mask_mod)


def flat(x: torch.Tensor, rank: int) -> Any:
    """The list with an axis for the batch and one for the heads."""
    x = x.detach().resolve_neg().cpu().to(torch.int32)
    return x.reshape((1,) * (rank - x.dim()) + tuple(x.shape)).contiguous().numpy()


def without_unassigned(counts: Any, indices: Any) -> tuple[Any, Any]:
    """The lists without entries of -1, which torch's PagedAttention writes for a page that is not assigned: a block
    without keys."""
    if counts.shape != indices.shape[:3]:
        return counts, indices  # from_lists() says what is wrong
    listed = np.arange(indices.shape[3]) < counts[..., None]
    unassigned = listed & (indices == -1)
    if not unassigned.any():
        return counts, indices
    order = np.argsort(~listed | unassigned, axis=-1, kind="stable")
    kept = counts - unassigned.sum(-1, dtype=counts.dtype)
    return kept, np.ascontiguousarray(np.take_along_axis(indices, order, -1))
