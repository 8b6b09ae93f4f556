"""The cells of the backward's comparison, their work, and what each must reach beside the best peer of the same run."""

import dataclasses

from comparison import grid

GROUPED_HEADS = (64, 8)  # query heads and KV heads of the cells with grouped queries
GROUPED_LENGTHS = (2048, 8192)
BACKWARD_PER_FORWARD = 2.5  # five products instead of two

# Geometric means over the cells of D 64 and D 128: beside the best peer, and beside cuDNN.
BEST_GEOMEAN_TARGET, CUDNN_GEOMEAN_TARGET = 1.08, 1.28
DETERMINISTIC_TARGET = 0.95  # of the rate without it


@dataclasses.dataclass(frozen=True)
class Cell:
    d: int
    causal: bool
    s: int
    grouped: bool = False

    @property
    def batch(self):
        return max(1, grid.TOKENS // self.s)

    @property
    def heads(self):
        return GROUPED_HEADS[0] if self.grouped else grid.WIDTH // self.d

    @property
    def kv_heads(self):
        return GROUPED_HEADS[1] if self.grouped else self.heads

    @property
    def mask(self):
        return "causal" if self.causal else "full"

    @property
    def name(self):
        return f"D{self.d}/{self.mask}/S{self.s}" + ("/GQA" if self.grouped else "")

    @property
    def flops(self):
        """Of the five products; causal counts half."""
        forward = 4.0 * self.batch * self.heads * self.s * self.s * self.d * (0.5 if self.causal else 1.0)
        return BACKWARD_PER_FORWARD * forward

    @property
    def target(self):
        """The least ratio to the best peer."""
        if self.grouped:
            return 1.05
        return 1.25 if self.s == 512 and self.d < 256 or self.s >= 2048 and self.d == 256 else 1.00

    @property
    def counts(self):
        """Whether it is part of the geometric means."""
        return self.d < 256 and not self.grouped


def all_cells():
    plain = [Cell(d, causal, s) for d in grid.HEAD_DIMS for causal in (False, True) for s in grid.LENGTHS]
    return plain + [Cell(128, causal, s, True) for causal in (False, True) for s in GROUPED_LENGTHS]


def quick_cells():
    """One cell a kernel, and one with grouped queries."""
    return [cell for cell in all_cells() if cell.s == 2048 and (cell.causal or not cell.grouped)]


def parse_cell(text):
    """The cells that "D128/causal/S8192" names; each part may be absent. "GQA": those with grouped queries. A name
    without that part leaves them out."""
    parts = text.split("/")
    chosen = [cell for cell in all_cells() if cell.grouped == ("GQA" in parts)]
    for part in parts:
        if part in ("full", "causal"):
            chosen = [cell for cell in chosen if cell.mask == part]
        elif part[:1] == "D" and part[1:].isdigit():
            chosen = [cell for cell in chosen if cell.d == int(part[1:])]
        elif part[:1] == "S" and part[1:].isdigit():
            chosen = [cell for cell in chosen if cell.s == int(part[1:])]
        elif part != "GQA":
            raise ValueError(f"'{part}' in '{text}' is no part of a cell; D64, full, causal, S512 and GQA are accepted")
    if not chosen:
        raise ValueError(f"no cell of the grid is {text}; D of {grid.HEAD_DIMS} and S of {grid.LENGTHS} are accepted")
    return chosen


def choose_cells(only, quick):
    if not only:
        return quick_cells() if quick else all_cells()
    wanted = {cell for text in only for cell in parse_cell(text)}
    return [cell for cell in all_cells() if cell in wanted]
