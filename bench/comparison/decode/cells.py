"""What is measured: few queries a sequence against caches of many keys, bf16 unless a cell says otherwise.

Groups of cells:

- plain: one query, 32 query heads on 8, D 128, dense and in pages of 16;
- window: the last 128 keys with sinks, 64 query heads on 8, D 64, as some layers of models have them;
- bytes: e4m3 keys and values beside bf16 queries;
- rows: 1 to 64 rows of each head of keys, of several queries with a causal mask or of several heads;
- latent: multi-head latent attention, 576 and 512, whose values are the first columns of the keys; one query, or two
  with a causal mask;
- pages: of 1, 64 and 256 keys;
- mods: ALiBi, softcap, T5's biases;
- ragged: lengths that differ, in pages of 16;
- documents: the keys of the query's document, which their ids tell, of equal documents in pages of 16 (the plain read
  reads all);
- prefix: sequences whose first keys stand in the same pages, read once (the plain read reads them once, too);
- fresh: calls that promise that all but the last token was there when the call before began.
"""

import dataclasses
import math
import random

SIZES = ((1, 1024), (1, 8192), (1, 65536), (16, 8192), (8, 65536), (256, 1024))
WINDOW_SIZES = ((1, 1024), (1, 131072), (16, 1024), (16, 16384))
ROWS = ((8, 8, 1), (32, 8, 1), (40, 8, 1), (28, 4, 1), (64, 8, 1), (96, 8, 1), (128, 8, 1), (32, 8, 4), (64, 8, 4), (64, 8, 8))
MODS = ("ALiBi", "softcap", "T5")


@dataclasses.dataclass(frozen=True)
class Cell:
    """`page`: keys of a page; 0: keys and values are dense. Pages come with lengths on the device. `window`: of the last
    keys, with sinks; 0: all. `lengths`: of each sequence; none: all have `s`. More than one query: causal."""

    group: str
    batch: int
    s: int
    page: int = 0
    window: int = 0
    q_heads: int = 32
    kv_heads: int = 8
    qk_dim: int = 128
    v_dim: int = 128
    q_len: int = 1
    kv_dtype: str = "bf16"
    mod: str = ""
    lengths: tuple = ()
    note: str = ""
    document: int = 0  # keys of each document; the last one is attended; 0: all
    prefix: int = 0  # keys that all sequences share, of `s`: whole pages
    fresh: int = 0  # tokens of each sequence that the kernel before may have written; 0: nothing is promised

    @property
    def latent(self):
        return self.group == "latent"

    @property
    def keys(self):
        """Of all sequences together, whole pages; shared ones count once."""
        step = max(self.page, 1)
        if self.prefix:
            return self.prefix + self.batch * (-(-self.s // step) * step - self.prefix)
        return sum(-(-length // step) * step for length in self.lengths or (self.s,) * self.batch)

    @property
    def cache_bytes(self):
        dims = self.qk_dim + (0 if self.latent else self.v_dim)
        return self.keys * self.kv_heads * dims * (1 if self.kv_dtype == "e4m3" else 2)

    @property
    def bytes(self):
        return self.cache_bytes * min(self.window or self.document or self.s, self.s) // self.s

    @property
    def flops(self):
        keys = self.keys + (self.batch - 1) * self.prefix
        return 2 * keys * self.q_heads * self.q_len * (self.qk_dim + self.v_dim)

    @property
    def name(self):
        parts = [f"B{self.batch}", f"S{self.s}"]
        if self.group in ("rows", "latent"):
            parts.append(f"{self.q_heads} heads on {self.kv_heads}" + (f" x {self.q_len}" if self.q_len > 1 else ""))
        if self.page:
            parts.append(f"pages of {self.page}")
        if self.prefix:
            parts.append(f"prefix {self.prefix}")
        if self.window:
            parts.append(f"window {self.window}")
        if self.document:
            parts.append(f"documents of {self.document}")
        if self.kv_dtype != "bf16":
            parts.append(self.kv_dtype)
        return "/".join(parts + [text for text in (self.mod, self.note) if text])

    @property
    def parts(self):
        """Words that --only may name the cell by."""
        paged = "paged" if self.page else "dense"
        return {self.group, f"B{self.batch}", f"S{self.s}", paged, self.mod or "no mod"}


def ragged(seed=7):
    """(note, lengths): one sequence much longer than the others, log-normal, uniform, a third without keys, and four of
    which no two are alike."""
    drawn = random.Random(seed)
    yield "one long", (131072, *[1024] * 63)
    yield "log-normal", tuple(min(131072, int(drawn.lognormvariate(math.log(2000), 1.2)) + 1) for _ in range(64))
    yield "uniform", tuple(drawn.randrange(1, 8193) for _ in range(128))
    yield "some empty", tuple(drawn.randrange(1, 8193) if i % 3 else 0 for i in range(96))
    yield "four", (4641, 45118, 1730, 1696)


def of_rows():
    for batch, s in ((1, 8192), (16, 8192)):
        for q_heads, kv_heads, q_len in ROWS:
            yield Cell("rows", batch, s, q_heads=q_heads, kv_heads=kv_heads, q_len=q_len)


def of_latent():
    for heads in (16, 64, 128):
        yield Cell("latent", 128, 4096, page=64, q_heads=heads, kv_heads=1, qk_dim=576, v_dim=512)
    for heads in (16, 64):  # a token and a guess at the next one
        yield Cell("latent", 128, 4096, page=64, q_heads=heads, kv_heads=1, qk_dim=576, v_dim=512, q_len=2)
    for batch, s in ((1, 8192), (16, 8192)):
        yield Cell("latent", batch, s, q_heads=16, kv_heads=1, qk_dim=576, v_dim=512)


def of_ragged():
    """Each beside equal lengths of as many keys."""
    for note, lengths in ragged():
        yield Cell("ragged", len(lengths), max(lengths), page=16, lengths=lengths, note=note)
        mean = -(-sum(lengths) // (16 * len(lengths))) * 16
        yield Cell("ragged", len(lengths), mean, page=16, note=f"equal to {note}")


def of_prefix():
    """64 sequences with a long prompt in common; shorter ones; few sequences; a group of 8 heads."""
    for batch, prefix, own, q_heads in ((64, 8192, 512, 32), (64, 1024, 512, 32), (8, 8192, 512, 32), (64, 8192, 512, 64)):
        yield Cell("prefix", batch, prefix + own, page=16, prefix=prefix, q_heads=q_heads)


def groups(sizes=SIZES, window_sizes=WINDOW_SIZES, page_sizes=(0, 16)):
    return {
        "plain": [Cell("plain", batch, s, page) for page in page_sizes for batch, s in sizes],
        "window": [
            Cell("window", batch, s, page, 128, q_heads=64, qk_dim=64, v_dim=64)
            for page in page_sizes
            for batch, s in window_sizes
        ],
        "bytes": [Cell("bytes", batch, s, page, kv_dtype="e4m3") for page in page_sizes for batch, s in sizes],
        "rows": list(of_rows()),
        "latent": list(of_latent()),
        "pages": [Cell("pages", batch, s, page) for page in (1, 64, 256) for batch, s in ((1, 8192), (16, 8192))],
        "mods": [Cell("mods", batch, s, mod=mod) for batch, s in ((1, 8192), (16, 8192)) for mod in ("", *MODS)],
        "ragged": list(of_ragged()),
        "prefix": list(of_prefix()),
        "documents": [
            Cell("documents", batch, 8192, 16, document=keys) for batch in (1, 16) for keys in (1024, 8192)
        ],
        "fresh": [
            Cell("fresh", batch, s, page, fresh=1, note="fresh tokens")
            for page in page_sizes
            for batch, s in sizes
            if batch * s < 100000
        ],
    }


GROUPS = tuple(groups(sizes=(), window_sizes=()))
DEFAULT = ("plain", "window")


def choose_cells(names, only, quick):
    """Those of the named groups (none: DEFAULT) whose words no text denies: B1, S1024, B1/paged. quick: the first one."""
    found = groups()
    for name in names:
        if name not in found:
            raise ValueError(f"--decode: '{name}' is none of {', '.join(GROUPS)}")
    chosen = [
        cell
        for name in names or DEFAULT
        for cell in found[name]
        if not only or any(set(text.split("/")) <= cell.parts for text in only)
    ]
    if not chosen:
        raise ValueError(f"--only: no cell is {' or '.join(only)}; B and S of a cell, dense, paged and mods are accepted")
    return chosen[:1] if quick else chosen


def trial():
    """Small ones of each kind, for a CPU."""
    small = groups(sizes=((1, 64), (3, 128)), window_sizes=((2, 200),))
    rows = [Cell("rows", 2, 100, q_heads=16, q_len=3)]
    latent = [Cell("latent", 2, 64, page=16, q_heads=4, kv_heads=1, qk_dim=576, v_dim=512)]
    mods = [Cell("mods", 2, 100, mod=mod) for mod in MODS]
    lengths = [Cell("ragged", 3, 50, page=16, lengths=(50, 0, 33), note="three")]
    prefix = [Cell("prefix", 3, 96, page=16, prefix=64), Cell("documents", 2, 96, page=16, document=32)]
    return prefix + small["plain"] + small["window"] + small["bytes"] + rows + latent + mods + lengths
