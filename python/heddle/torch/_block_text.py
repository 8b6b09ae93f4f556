"""torch's texts of a block mask, from what it is made of: neither makes lists or a dense mask, so that their memory and time
do not grow with the number of blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn.attention import flex_attention as flex

from ._block_lists import LazyLists, dense

# How many of the blocks in each cell of a score matrix attend: from the matrix, and a cell's rows and columns.
Counts = Callable[[tuple[int, ...], int, int], Sequence[Sequence[int]]]


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


def picture_of(
    matrices: Sequence[int], blocks: tuple[int, int], counts: Counts, grid_size: int | tuple[int, int], limit: int
) -> str:
    """torch's to_string(). `matrices`: how many score matrices there are on each axis of the batch. `blocks`: how many
    blocks one has, in rows and columns."""
    grid = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
    steps = [max(1, -(-have // most)) for have, most in zip(blocks, grid)]
    parts: list[str] = []
    for place, matrix in enumerate(itertools.product(*map(range, matrices))):
        if place == limit:
            parts += ["...", "To print out more, set BlockMask.to_string(limit=N)",
                      "You can also index (BlockMask[batch, head]) to choose a specific batch or head"]
            break
        lines = cells_of(counts(matrix, steps[0], steps[1]), blocks, steps)
        parts.append("".join(f"{line}\n" for line in (f"{matrix}", *lines)))
    return "\n".join(parts)


def cells_of(counts: Sequence[Sequence[int]], blocks: tuple[int, int], steps: Sequence[int]) -> Iterator[str]:
    for row, in_columns in enumerate(counts):
        height = min(steps[0], blocks[0] - row * steps[0])
        widths = (min(steps[1], blocks[1] - column * steps[1]) for column in range(len(in_columns)))
        yield "".join(2 * (" " if not count else "█" if count == height * width else "░")
                      for count, width in zip(in_columns, widths))


def counts_of_lists(mask: flex.BlockMask) -> Counts:
    """From lists, some rows of them at a time."""
    lists = [(mask.kv_num_blocks, mask.kv_indices)]
    if mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None:
        lists.append((mask.full_kv_num_blocks, mask.full_kv_indices))

    def counts(matrix: tuple[int, ...], height: int, width: int) -> list[list[int]]:
        made = []
        for begin in range(0, mask.kv_num_blocks.shape[-1], height):
            rows = slice(begin, begin + height)
            blocks = sum(dense(counts[matrix][rows], indices[matrix][rows]).sum(0) for counts, indices in lists)
            made.append([int(part.sum()) for part in torch.split(torch.as_tensor(blocks), width)])
        return made

    return counts
