"""The mods and masks that the comparisons measure: texts for Heddle, the same as functions of torch, what they read, and
how much of the baseline's time each may take.

One problem, B 2, H 16, S 8192, bf16, at D 64 and 128.
"""

import dataclasses
import math
from typing import Callable

from comparison import mod_peers, philox

BATCH, HEADS, LENGTH = 2, 16, 8192
DOCUMENTS = (1000, 37, 2055, 900, 1500, 700, 1200, 800)
PADDING = 400  # keys at the end
CAUSAL = "q_idx >= kv_idx"
NORMALIZERS = ("softmax", "none", "sigmoid")
T5 = "table[where(q_idx < kv_idx, 16, 0) + min(abs(kv_idx - q_idx), 8) + " + " + ".join(
    f"i32(abs(kv_idx - q_idx) >= {edge})" for edge in (12, 16, 23, 32, 46, 64, 91)
)


# Windows of 32 x 32 tokens, one after the other: where the table has the bias of two positions in them.
GRID = "((q_idx % 1024) // 32 - (kv_idx % 1024) // 32 + 31) * 63 + q_idx % 32 - kv_idx % 32 + 31"


def grid_index(q, k):
    return ((q % 1024) // 32 - (k % 1024) // 32 + 31) * 63 + q % 32 - k % 32 + 31


SEED, KEPT = 1234, 1 / (1 - mod_peers.DROPPED)


def kept_weights(torch):
    def weight(b, h, q, k):
        drawn = philox.random_uniform(torch, SEED, b, h, q, k)
        return torch.where(drawn < mod_peers.DROPPED, 0.0, KEPT)

    return weight


def t5_bucket(torch, q, k):
    n = (k - q).abs()
    far = sum((n >= edge).long() for edge in (12, 16, 23, 32, 46, 64, 91))
    return torch.where(q < k, 16, 0) + n.clamp(max=8) + far


@dataclasses.dataclass(frozen=True)
class Mod:
    """Texts for Heddle; `make(torch, captures)` gives the same as functions score(t, h, q, k) and mask(q, k), and
    `weigh(torch)` as weight(b, h, q, k). `streamed`: a capture of which every element is read."""

    name: str
    targets: dict  # most times the baseline's time, by D
    score: str = ""
    mask: str = ""
    captures: tuple = ()
    sinks: bool = False
    normalizer: str = "softmax"
    make: Callable = lambda torch, captures: (None, None)
    weight: str = ""
    weigh: Callable = lambda torch: None
    streamed: str = ""

    @property
    def baseline(self):
        return "blocks" if self.mask else "plain"

    @property
    def softmax(self):
        return self.normalizer == "softmax"


def both(d64, d128):
    return {64: d64, 128: d128}


MODS = (
    Mod(
        "ALiBi",
        both(1.20, 1.10),
        score="score + slopes[h] * (kv_idx - q_idx)",
        captures=("slopes",),
        make=lambda torch, x: (lambda t, h, q, k: t + x["slopes"][h] * (k - q), None),
    ),
    Mod(
        "relative position",
        both(1.20, 1.10),
        score="score + (q_idx - kv_idx)",
        make=lambda torch, x: (lambda t, h, q, k: t + (q - k), None),
    ),
    Mod(
        "T5",
        both(1.20, 1.10),
        score=f"score + {T5}, h]",
        captures=("table",),
        make=lambda torch, x: (lambda t, h, q, k: t + x["table"][t5_bucket(torch, q, k), h], None),
    ),
    Mod(
        "softcap 20",
        both(1.5, 1.25),
        score="20 * tanh(score / 20)",
        make=lambda torch, x: (lambda t, h, q, k: 20 * torch.tanh(t / 20), None),
    ),
    Mod(
        "bias, bf16",
        both(1.25, 1.25),
        score="score + bias[h, q_idx, kv_idx]",
        captures=("bias",),
        make=lambda torch, x: (lambda t, h, q, k: t + x["bias"][h, q, k], None),
        streamed="bias",
    ),
    Mod(
        "bias, f32",
        both(1.25, 1.25),
        score="score + bias32[h, q_idx, kv_idx]",
        captures=("bias32",),
        make=lambda torch, x: (lambda t, h, q, k: t + x["bias32"][h, q, k], None),
        streamed="bias32",
    ),
    Mod(
        "padding",
        both(1.25, 1.12),
        score="score + padding[kv_idx]",
        captures=("padding",),
        make=lambda torch, x: (lambda t, h, q, k: t + x["padding"][k], None),
    ),
    Mod(
        "temperature and gate, causal",
        both(1.25, 1.12),
        score="score * temperature[kv_idx] + gate[h, q_idx]",
        mask=CAUSAL,
        captures=("temperature", "gate"),
        make=lambda torch, x: (
            lambda t, h, q, k: t * x["temperature"][k] + x["gate"][h, q],
            lambda q, k: q >= k,
        ),
    ),
    Mod(
        "grid bias",
        both(2.5, 2.5),
        score=f"score + grid[{GRID}, h]",
        captures=("grid",),
        make=lambda torch, x: (lambda t, h, q, k: t + x["grid"][grid_index(q, k), h], None),
    ),
    Mod(
        "dropout",
        both(1.5, 1.5),
        weight=f"where(random_uniform({SEED}, b, h, q_idx, kv_idx) < {mod_peers.DROPPED}, 0.0, {KEPT!r})",
        weigh=kept_weights,
    ),
    Mod("sinks", both(1.02, 1.02), sinks=True),
    Mod("sigmoid", both(2.0, 1.5), normalizer="sigmoid"),
    Mod("no normalizer", both(1.0, 1.0), normalizer="none"),
    Mod("causal", both(1.10, 1.10), mask=CAUSAL, make=lambda torch, x: (None, lambda q, k: q >= k)),
    Mod(
        "ALiBi, causal",
        both(1.20, 1.10),
        score="score + slopes[h] * (kv_idx - q_idx)",
        mask=CAUSAL,
        captures=("slopes",),
        make=lambda torch, x: (lambda t, h, q, k: t + x["slopes"][h] * (k - q), lambda q, k: q >= k),
    ),
    Mod(
        "softcap 20, causal",
        both(1.5, 1.25),
        score="20 * tanh(score / 20)",
        mask=CAUSAL,
        make=lambda torch, x: (lambda t, h, q, k: 20 * torch.tanh(t / 20), lambda q, k: q >= k),
    ),
    Mod(
        "window 1024",
        both(1.10, 1.10),
        mask=f"{CAUSAL} and q_idx - kv_idx <= 1024",
        make=lambda torch, x: (None, lambda q, k: (q >= k) & (q - k <= 1024)),
    ),
    Mod(
        "prefix 1024",
        both(1.10, 1.10),
        mask=f"kv_idx < 1024 or {CAUSAL}",
        make=lambda torch, x: (None, lambda q, k: (k < 1024) | (q >= k)),
    ),
    Mod(
        "documents, causal",
        both(1.10, 1.10),
        mask=f"{CAUSAL} and ids[q_idx] == ids[kv_idx]",
        captures=("ids",),
        make=lambda torch, x: (None, lambda q, k: (q >= k) & (x["ids"][q] == x["ids"][k])),
    ),
    Mod(
        "dilated",
        both(1.10, 1.10),
        mask=f"{CAUSAL} and (q_idx - kv_idx) % 4 == 0",
        make=lambda torch, x: (None, lambda q, k: (q >= k) & ((q - k) % 4 == 0)),
    ),
    Mod(
        "tree",
        both(1.10, 1.10),
        mask="enter[kv_idx] <= enter[q_idx] and enter[q_idx] <= last[kv_idx]",
        captures=("enter", "last"),
        make=lambda torch, x: (
            None,
            lambda q, k: (x["enter"][k] <= x["enter"][q]) & (x["enter"][q] <= x["last"][k]),
        ),
    ),
)


@dataclasses.dataclass(frozen=True)
class ModCell:
    """The problem of one head dim, in the shape that grid.Cell has."""

    d: int
    length: int = LENGTH
    batch: int = BATCH
    heads: int = HEADS
    causal: bool = False

    @property
    def s(self):
        return self.length


class Functions:
    """A mod's functions, as criterion.Reference calls them."""

    def __init__(self, score, mask, weight=None, sinks=None, normalizer="softmax"):
        self.score, self.mask, self.weight = score, mask, weight
        self.sinks, self.normalizer = sinks, normalizer


def tree_intervals(torch, count):
    """A tree of branches of 64 nodes, each from an earlier node near by, numbered in the order in which a walk from the
    root meets them: a node attends its ancestors. enter: when it is met; last: the last of those below it."""
    parents = [i - 1 if i % 64 else i - 1 - (37 * (i // 64)) % 256 for i in range(count)]
    parents = [parent if parent >= 0 else i - 1 for i, parent in enumerate(parents)]
    children = [[] for _ in range(count)]
    for i, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(i)
    enter, order, stack = [0] * count, [], [0]
    while stack:
        node = stack.pop()
        enter[node] = len(order)
        order.append(node)
        stack += reversed(children[node])
    last = list(enter)
    for node in reversed(order):
        if parents[node] >= 0:
            last[parents[node]] = max(last[parents[node]], last[node])
    return (torch.tensor(x, dtype=torch.int32) for x in (enter, last))


def capture_tensors(torch, device, cell):
    """Every capture, once for all mods."""
    generator = torch.Generator(device=device).manual_seed(1)
    numbers = torch.arange(1, cell.heads + 1, device=device)
    parts = [math.ceil(part * cell.s / LENGTH) for part in DOCUMENTS]
    ids = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(parts))[: cell.s]
    kept_keys = cell.s - math.ceil(PADDING * cell.s / LENGTH)
    enter, last = tree_intervals(torch, cell.s)
    bias = torch.randn(cell.heads, cell.s, cell.s, device=device, generator=generator)
    return {
        "slopes": torch.exp2(-8.0 * numbers.float() / cell.heads),
        "table": torch.randn(32, cell.heads, device=device, generator=generator),
        "ids": ids.to(torch.int32).to(device),
        "padding": torch.where(torch.arange(cell.s, device=device) < kept_keys, 0.0, -math.inf),
        "temperature": 1 + 0.2 * torch.rand(cell.s, device=device, generator=generator),
        "gate": torch.randn(cell.heads, cell.s, device=device, generator=generator),
        "grid": torch.randn(63 * 63, cell.heads, device=device, generator=generator),
        "sinks": torch.randn(cell.heads, device=device, generator=generator) * 4,
        "bias": bias.to(torch.bfloat16),
        "bias32": bias,
        "enter": enter.to(device),
        "last": last.to(device),
    }
