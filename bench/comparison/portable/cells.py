"""The cells of the portable families' table: pass, type, head dim, mask, length."""

import dataclasses

from comparison import grid

PASSES = {"forward": 2, "backward": 5}  # products
DTYPES = ("bf16", "f32", "tf32")  # tf32: of f32, where products of tf32 are allowed
DIMS, LENGTHS = (64, 128), (2048, 8192)
MODS = ("ALiBi", "softcap 20", "window 1024", "documents, causal")
# The least ratio to the best of the peers.
TARGETS = {"forward": 1.0, "backward": 0.95}


@dataclasses.dataclass(frozen=True)
class Cell:
    of_pass: str
    dtype: str
    d: int
    causal: bool
    s: int
    tokens: int = grid.TOKENS

    @property
    def batch(self):
        return max(1, self.tokens // self.s)

    @property
    def heads(self):
        return grid.WIDTH // self.d

    @property
    def mask(self):
        return "causal" if self.causal else "full"

    @property
    def name(self):
        return f"{self.of_pass}/{self.dtype}/D{self.d}/{self.mask}/S{self.s}"

    @property
    def backward(self):
        return self.of_pass == "backward"

    @property
    def flops(self):
        """Of all products; causal counts half."""
        pairs = self.batch * self.heads * self.s * self.s * (0.5 if self.causal else 1.0)
        return 2.0 * PASSES[self.of_pass] * pairs * self.d

    @property
    def target(self):
        return TARGETS[self.of_pass] if self.dtype == "bf16" else 1.0


def all_cells():
    return [
        Cell(of_pass, dtype, d, causal, s)
        for of_pass in PASSES
        for dtype in DTYPES
        for d in DIMS
        for causal in (False, True)
        for s in LENGTHS
    ]


def trial():
    """For a CPU, to try the program out."""
    return [Cell(of_pass, "f32", 64, True, 64, tokens=64) for of_pass in PASSES]


def parse(text):
    """The cells that "backward/f32/D64" names; each part may be absent."""
    chosen = all_cells()
    for part in text.split("/"):
        chosen = [cell for cell in chosen if part in cell.name.split("/")]
        if not chosen:
            raise ValueError(
                f"no cell is {text}; {', '.join((*PASSES, *DTYPES))}, full, causal, D of {DIMS} and S of {LENGTHS} are "
                "accepted"
            )
    return chosen


def choose_cells(only, quick):
    """`quick`: the shorter length alone."""
    chosen = [cell for cell in all_cells() if not quick or cell.s == LENGTHS[0]]
    if only:
        wanted = {cell for text in only for cell in parse(text)}
        chosen = [cell for cell in all_cells() if cell in wanted]
    return chosen
