"""What is compared: the cells of the grid, their work, and what each must reach beside cuDNN."""

import dataclasses
import time

TOKENS = 16384  # batch * S
WIDTH = 2048  # H * D
HEAD_DIMS = (64, 128, 256)
LENGTHS = (512, 2048, 8192, 16384)
GEMM_SIZE = 8192

# The best of FlashAttention-3, FlashAttention-4 and cuDNN as a ratio to cuDNN in the same run, on one H200 (November
# 2026): what "at least the best peer" means, by (D, causal), in the order of LENGTHS.
BEST_PEER = {
    (64, False): (1.00, 1.06, 1.12, 1.19),
    (64, True): (1.00, 1.03, 1.14, 1.13),
    (128, False): (1.00, 1.06, 1.09, 1.09),
    (128, True): (1.00, 1.21, 1.16, 1.11),
    (256, False): (1.00, 1.07, 1.05, 1.10),
    (256, True): (1.00, 1.08, 1.23, 1.20),
}
GEOMEAN_TARGET = 1.10
# D 128, S >= 8192: the part of the same-run GEMM's rate, by causal.
GEMM_TARGET = {False: 0.97, True: 0.93}


@dataclasses.dataclass(frozen=True)
class Cell:
    d: int
    causal: bool
    s: int

    @property
    def batch(self):
        return max(1, TOKENS // self.s)

    @property
    def heads(self):
        return WIDTH // self.d

    @property
    def mask(self):
        return "causal" if self.causal else "full"

    @property
    def name(self):
        return f"D{self.d}/{self.mask}/S{self.s}"

    @property
    def flops(self):
        """Of both products; causal counts half."""
        return 4.0 * self.batch * self.heads * self.s * self.s * self.d * (0.5 if self.causal else 1.0)

    @property
    def target(self):
        """The least ratio to cuDNN; None off the grid."""
        row = BEST_PEER.get((self.d, self.causal))
        return row[LENGTHS.index(self.s)] if row and self.s in LENGTHS else None

    @property
    def gemm_target(self):
        return GEMM_TARGET[self.causal] if self.d == 128 and self.s >= 8192 else None


def all_cells():
    return [Cell(d, causal, s) for d in HEAD_DIMS for causal in (False, True) for s in LENGTHS]


def quick_cells():
    """One cell a kernel: enough to see that everything works."""
    return [Cell(d, causal, 2048) for d in HEAD_DIMS for causal in (False, True)]


def parse_cell(text):
    """The cells that "D128/causal/S8192" names; each part may be absent: "D128", "causal", "S512/full"."""
    chosen = all_cells()
    for part in text.split("/"):
        if part in ("full", "causal"):
            chosen = [cell for cell in chosen if cell.mask == part]
        elif part[:1] == "D" and part[1:].isdigit():
            chosen = [cell for cell in chosen if cell.d == int(part[1:])]
        elif part[:1] == "S" and part[1:].isdigit():
            chosen = [cell for cell in chosen if cell.s == int(part[1:])]
        else:
            raise ValueError(f"'{part}' in '{text}' is no part of a cell; D64, full, causal and S512 are accepted")
    if not chosen:
        raise ValueError(f"no cell of the grid is {text}; D of {HEAD_DIMS} and S of {LENGTHS} are accepted")
    return chosen


def choose_cells(only, quick):
    chosen = quick_cells() if quick else all_cells()
    if only:
        wanted = {cell for text in only for cell in parse_cell(text)}
        chosen = [cell for cell in all_cells() if cell in wanted]
    return chosen


def in_time(cells, seconds, say):
    """The cells that begin before so many seconds are over; `say` takes a line for the terminal."""
    begin = time.monotonic()
    for cell in cells:
        if time.monotonic() - begin > seconds:
            say(f"stopping before {cell.name}: --seconds {seconds:g} are over")
            return
        yield cell


def entry_of(cell, *more):
    """A cell of the results, with these further attributes, before anything was compared."""
    names = ("name", "d", "causal", "s", "batch", "heads", *more)
    return {name: getattr(cell, name) for name in names} | {"contenders": {}}
