"""torch's text of a block mask whose lists were not made: it needs their shapes and the share of blocks alone."""

from __future__ import annotations

import torch
from torch.nn.attention import flex_attention as flex

from ._block_lists import LazyLists


class Shown(flex.BlockMask):
    """A block mask whose lists have no memory."""

    share: float

    def sparsity(self) -> float:
        return self.share


def text_of(mask: flex.BlockMask, lazy: LazyLists) -> str:
    shown = Shown.__new__(Shown)
    shown.__dict__.update(mask.__dict__, **shapes(lazy), share=mask.sparsity())
    return repr(shown)


def shapes(lazy: LazyLists) -> dict[str, torch.Tensor]:
    rows, columns = (-(-length // block) for length, block in zip(lazy.lengths, lazy.block))
    lists = {}
    for name, counts, entries in (("kv", rows, columns), ("full_kv", rows, columns), ("q", columns, rows),
                                  ("full_q", columns, rows)):
        shape = lazy.batch, lazy.heads, counts
        lists[f"{name}_num_blocks"] = torch.empty(shape, dtype=torch.int32, device="meta")
        lists[f"{name}_indices"] = torch.empty((*shape, entries), dtype=torch.int32, device="meta")
    return lists
