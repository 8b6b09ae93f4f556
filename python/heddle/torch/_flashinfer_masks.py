"""FlashInfer's custom masks as mask functions."""

from __future__ import annotations

from typing import Any

import torch


def beside_window(q_lengths: torch.Tensor, kv_lengths: torch.Tensor, given: torch.Tensor | None,
                  packed: torch.Tensor | None) -> Any:
    """custom_mask has the pairs of all requests one after the other, True where a key is seen. Packed, each request
    begins with a byte of its own, and the lowest bit is the first pair. Returns the mask_mod beside a window."""
    sizes, queries = q_lengths.long() * kv_lengths.long(), q_lengths.to(torch.int32)
    if packed is not None:
        sizes = (sizes + 7) // 8
    starts, lengths = (sizes.cumsum(0) - sizes).to(torch.int32), kv_lengths.to(torch.int32)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        pair = q_idx * lengths[b] + kv_idx
        if packed is None:
            assert given is not None
            return given[starts[b] + pair]
        return (packed[starts[b] + pair // 8].to(torch.int32) >> (pair % 8)) & 1 != 0

    def in_window(left: int) -> Any:
        if left < 0:
            return mask_mod
        return lambda b, h, q_idx, kv_idx: (mask_mod(b, h, q_idx, kv_idx)
                                            & (q_idx - kv_idx <= left + queries[b] - lengths[b]))

    return in_window
