"""Steps of decoding: one query a sequence, 32 query heads on 8, D 128, bf16, keys and values dense or in pages. Windows
besides, with sinks: the last 128 keys, 64 query heads on 8, D 64, as some layers of models have them.

Memory decides here, so each time stands beside that of a plain read of the same keys and values. All calls run in CUDA
graphs, and in two ways:

- alone: a graph of one call, after a buffer larger than L2 was written (timing.GpuClock). An empty graph takes 3 to
  4 us this way, and the first reads wait until the written lines have left L2.
- in a row: a graph of many calls over different caches, more than L2 holds, as the layers of a model make them. The
  time of one call is the graph's by their number.
"""

import contextlib
import math
import os

from comparison import library as c
from comparison import report, timing

Q_HEADS, KV_HEADS, D = 32, 8, 128
CELLS = ((1, 1024), (1, 8192), (1, 65536), (16, 8192), (8, 65536), (256, 1024))
WINDOW, WINDOW_HEADS, WINDOW_D = 128, 64, 64
WINDOW_CELLS = ((1, 1024), (1, 131072), (16, 1024), (16, 16384))
PAGES = (0, 16)
IN_A_ROW = 32  # calls of a graph, at least
ROW_BYTES = 256 << 20  # that they read together, at least
MOST_BYTES = 40 << 30  # of their caches together
FAMILIES = ("decode_mma", "forward_mma", "forward_sm90")
JUDGED = 16  # sequences


class Cell:
    """`page`: keys of a page; 0: keys and values are dense. Pages come with lengths on the device. `window`: of the last
    keys; 0: all."""

    def __init__(self, batch, s, page, window=0):
        self.batch, self.s, self.page, self.window = batch, s, page, window
        self.q_heads, self.d = (WINDOW_HEADS, WINDOW_D) if window else (Q_HEADS, D)
        self.cache_bytes = 2 * batch * s * KV_HEADS * self.d * 2
        self.bytes = self.cache_bytes * min(window or s, s) // s
        self.name = f"B{batch}/S{s}" + (f"/pages of {page}" if page else "") + (f"/window {window}" if window else "")


def cells(page_sizes=PAGES, sizes=CELLS, window_sizes=WINDOW_CELLS):
    whole = [Cell(batch, s, page) for page in page_sizes for batch, s in sizes]
    return whole + [Cell(batch, s, page, WINDOW) for page in page_sizes for batch, s in window_sizes]


def choose_cells(only, quick):
    """Those whose batch, length, `dense` or `paged`, and `whole` or `window` no text denies: B1, S1024, B1/paged. quick:
    the first one."""
    chosen = []
    for cell in cells():
        parts = {f"B{cell.batch}", f"S{cell.s}", "paged" if cell.page else "dense", "window" if cell.window else "whole"}
        if not only or any(set(text.split("/")) <= parts for text in only):
            chosen.append(cell)
    if not chosen:
        raise ValueError(f"no cell is {' or '.join(only)}; B, S of {CELLS} and {WINDOW_CELLS}, dense, paged, whole and window are accepted")
    return chosen[:1] if quick else chosen


class Inputs:
    """q [B, heads, 1, D], and `caches`: (k, v) of each layer, [B, 8, S, D], or pages [pages, 8, page, D], which the
    table of pages lists in random order."""

    def __init__(self, torch, cell, device, layers):
        self.torch, self.cell, self.device = torch, cell, device
        self.q = torch.randn(cell.batch, cell.q_heads, 1, cell.d, device=device).bfloat16()
        self.sinks = torch.randn(cell.q_heads, device=device) if cell.window else None
        self.table = self.lengths = None
        shape = (cell.batch, cell.s, KV_HEADS, cell.d)
        if cell.page:
            pages = cell.batch * cell.s // cell.page
            shape = (pages, cell.page, KV_HEADS, cell.d)
            order = torch.randperm(pages, device=device).to(torch.int32)
            self.table = order.reshape(cell.batch, cell.s // cell.page).contiguous()
            self.lengths = torch.full((cell.batch,), cell.s, device=device, dtype=torch.int32)
        self.caches = [
            tuple(torch.randn(shape, device=device, dtype=torch.bfloat16).transpose(1, 2) for _ in range(2))
            for _ in range(layers)
        ]

    def rows(self, cache, batch):
        """k and v [8, S, 128] of a sequence."""
        if self.table is None:
            return tuple(x[batch] for x in cache)
        pages = self.table[batch].long()
        return tuple(x[pages].transpose(0, 1).reshape(KV_HEADS, self.cell.s, self.cell.d) for x in cache)


class Heddle:
    """One plan, run on the cache of any layer."""

    def __init__(self, inputs, lib):
        torch, cell = inputs.torch, inputs.cell
        self.inputs, self.lib = inputs, lib
        self.o = torch.full_like(inputs.q, math.nan)
        named = {}
        if cell.page:
            named = {"page_table": self._view(inputs.table, "i32"), "kv_lengths": self._view(inputs.lengths, "i32")}
        mask = None
        if cell.window:
            named["sinks"] = self._view(inputs.sinks, "f32")
            mask = f"kv_len - 1 - kv_idx < {cell.window}".encode()
        self.attention = c.AttentionOptions(
            mask_mod=mask,
            max_kv_len=cell.s if cell.page else 0,
            **{name: c.ctypes.pointer(view) for name, view in named.items()},
        )
        self.kept = named
        self.tensors = [
            c.attention_tensors(*(self._view(x, "bf16") for x in (inputs.q, *cache, self.o))) for cache in inputs.caches
        ]
        self.plan = lib.plan(self.tensors[0], self.attention)
        count = self.plan.workspace_bytes()
        self.workspace = torch.empty(max(count, 1), dtype=torch.uint8, device=inputs.device)
        self.options = c.RunOptions(workspace=self.workspace.data_ptr() if count else None)

    def _view(self, x, dtype):
        device = "cpu" if self.inputs.device == "cpu" else "cuda"
        return c.tensor(x.data_ptr(), dtype, x.shape, x.stride(), device, x.device.index or 0)

    def __call__(self, layer=0):
        if self.inputs.device != "cpu":
            self.options.stream = self.inputs.torch.cuda.current_stream().cuda_stream
        self.plan.run(self.tensors[layer], self.options)
        return self.o


@contextlib.contextmanager
def family(name):
    """Plans take that family alone."""
    before = os.environ.get("HEDDLE_FAMILY")
    os.environ["HEDDLE_FAMILY"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["HEDDLE_FAMILY"]
        else:
            os.environ["HEDDLE_FAMILY"] = before


class Sdpa:
    """A backend of PyTorch's on dense caches."""

    def __init__(self, inputs, backend):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self.inputs, self.kernel, self.backend = inputs, sdpa_kernel, getattr(SDPBackend, backend)

    def __call__(self, layer=0):
        attend = self.inputs.torch.nn.functional.scaled_dot_product_attention
        with self.kernel(self.backend):
            return attend(self.inputs.q, *self.inputs.caches[layer], enable_gqa=True)


class FlashInfer:
    """Its decode on pages, by tensor cores, planned once for a graph."""

    def __init__(self, inputs):
        import flashinfer

        torch, cell = inputs.torch, inputs.cell
        pages = cell.s // cell.page
        starts = torch.arange(cell.batch + 1, device=inputs.device, dtype=torch.int32) * pages
        last = torch.full((cell.batch,), cell.page, device=inputs.device, dtype=torch.int32)
        numbers = inputs.table.flatten()
        self.inputs = inputs
        self.wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(256 << 20, dtype=torch.uint8, device=inputs.device),
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=starts.clone(),
            paged_kv_indices_buffer=numbers.clone(),
            paged_kv_last_page_len_buffer=last.clone(),
        )
        kinds = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
        self.wrapper.plan(starts, numbers, last, Q_HEADS, KV_HEADS, D, cell.page, **kinds)

    def __call__(self, layer=0):
        cache = tuple(x.transpose(1, 2) for x in self.inputs.caches[layer])
        return self.wrapper.run(self.inputs.q[:, :, 0], cache)[:, :, None]


class Read:
    """Reads all keys and values, and adds them up: a limit by memory, written in Triton."""

    PROGRAM, BLOCK = 8192, 2048  # elements of a program, and of one of its loads

    def __init__(self, inputs):
        import triton
        import triton.language as tl

        @triton.jit
        def read(k, v, sums, count, PROGRAM: tl.constexpr, BLOCK: tl.constexpr):
            program = tl.program_id(0).to(tl.int64)
            total = tl.zeros((BLOCK,), tl.float32)
            for i in tl.static_range(0, PROGRAM, BLOCK):
                at = program * PROGRAM + i + tl.arange(0, BLOCK)
                total += tl.load(k + at, at < count, 0.0).to(tl.float32)
                total += tl.load(v + at, at < count, 0.0).to(tl.float32)
            tl.store(sums + program, tl.sum(total))

        self.inputs, self.read = inputs, read
        self.count = inputs.caches[0][0].numel()
        self.programs = -(-self.count // self.PROGRAM)
        self.sums = inputs.torch.empty(self.programs, device=inputs.device)

    def __call__(self, layer=0):
        k, v = self.inputs.caches[layer]
        self.read[(self.programs,)](k, v, self.sums, self.count, PROGRAM=self.PROGRAM, BLOCK=self.BLOCK)


def contenders(inputs, lib):
    """(name, function that makes the contender)."""
    yield "heddle", lambda: Heddle(inputs, lib)
    if inputs.device == "cpu":
        return
    for name in FAMILIES:

        def make(name=name):
            with family(name):
                return Heddle(inputs, lib)

        yield name, make
    if inputs.cell.window:
        return
    yield "read", lambda: Read(inputs)
    if inputs.cell.page:
        yield "flashinfer", lambda: FlashInfer(inputs)
    else:
        yield "cudnn", lambda: Sdpa(inputs, "CUDNN_ATTENTION")
        yield "fa2", lambda: Sdpa(inputs, "FLASH_ATTENTION")


def judge(inputs, o):
    """The largest error of o beside float64, by what an unfused computation errs: S and softmax in f32, P in bf16. Up
    to 2 is right (heddle/check.h, a)."""
    torch, worst, plain, cell = inputs.torch, 0.0, 0.0, inputs.cell
    for batch in range(min(cell.batch, JUDGED)):
        k, v = (x[:, -cell.window :] for x in inputs.rows(inputs.caches[0], batch))
        q = inputs.q[batch].reshape(KV_HEADS, -1, cell.d)
        t = q.double() @ k.double().transpose(1, 2) / math.sqrt(cell.d)
        if inputs.sinks is not None:  # a key whose value is 0
            t = torch.cat([t, inputs.sinks.double().reshape(KV_HEADS, -1, 1)], -1)
            v = torch.cat([v, torch.zeros_like(v[:, :1])], 1)
        right = torch.softmax(t, -1) @ v.double()
        p = torch.softmax(t.float(), -1)
        unfused = (p.bfloat16().double() @ v.double()).to(o.dtype)
        own = o[batch].reshape(right.shape).double()
        worst = max(worst, (own - right).abs().max().item()) if own.isfinite().all() else math.inf
        plain = max(plain, (unfused.double() - right).abs().max().item())
    return worst / plain


def graph_of(torch, call, layers):
    """A graph of the calls of these layers."""
    for layer in layers[:3]:
        call(layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            call(layer)

    def replay(kept=call):  # what the graph's kernels read
        graph.replay()

    return replay


def layers_of(cell, device):
    if device == "cpu":
        return 1
    return max(2, min(2 * IN_A_ROW, -(-ROW_BYTES // cell.bytes), MOST_BYTES // cell.cache_bytes))


class Comparison:
    def __init__(self, torch, lib, device, rounds, say, chosen):
        self.torch, self.lib, self.device, self.rounds, self.say = torch, lib, device, rounds, say
        self.cells = chosen
        self.clock = timing.HostClock() if device == "cpu" else timing.GpuClock(torch)
        self.missing = {}

    def run(self):
        entries = []
        for cell in self.cells:
            entry = {"name": cell.name, "bytes": cell.bytes, "contenders": {}}
            entries.append(entry)
            try:
                self.compare(cell, entry)
            except Exception as error:  # the other cells still count
                entry["error"] = f"{type(error).__name__}: {error}"[:2000]
            self.say(line(entry))
            if self.device != "cpu":
                self.torch.cuda.empty_cache()
        return entries

    def compare(self, cell, entry):
        layers = layers_of(cell, self.device)
        inputs = Inputs(self.torch, cell, self.device, layers)
        alone, in_a_row = {}, {}
        calls = [i % layers for i in range(max(layers, IN_A_ROW))]
        for name, make in contenders(inputs, self.lib):
            if name in self.missing:
                continue
            ran = entry["contenders"][name] = {}
            try:
                call = make()
                result = call()
                if name != "read":
                    ran["error_by_plain"] = judge(inputs, result)
                if isinstance(call, Heddle):
                    ran["plan"] = call.plan.explain()
                if self.device == "cpu":
                    alone[name] = timing.Timed(call, self.clock)
                else:
                    alone[name] = timing.Timed(graph_of(self.torch, call, [0]), self.clock)
                    in_a_row[name] = timing.Timed(graph_of(self.torch, call, calls), self.clock)
            except ImportError as error:
                self.missing[name] = str(error)
                del entry["contenders"][name]
            except Exception as error:
                ran["error"] = f"{type(error).__name__}: {error}"[:2000]
        for kind, timed, count in (("alone", alone, 1), ("in_a_row", in_a_row, len(calls))):
            failed = timing.interleave(timed, self.rounds)
            for name, one in timed.items():
                if name in failed:
                    entry["contenders"][name]["error"] = str(failed[name])
                elif one.samples:
                    entry["contenders"][name][kind] = 1e3 * report.median(one.samples) / count


def peers(entry, kind):
    """Times of the others, but for the read."""
    return [
        ran[kind]
        for name, ran in entry["contenders"].items()
        if name not in ("heddle", "read", *FAMILIES) and ran.get(kind)
    ]


def verdict(entry):
    ours = entry["contenders"].get("heddle", {})
    if entry.get("error") or ours.get("error"):
        return "ERROR"
    if not ours.get("error_by_plain", math.inf) <= 2:
        return "WRONG"
    best = [min(peers(entry, kind), default=None) for kind in ("alone", "in_a_row")]
    if None in best:
        return "-"
    return "ok" if ours["alone"] <= best[0] and ours["in_a_row"] <= best[1] else "MISS"


COLUMNS = ("heddle", *FAMILIES, "read", "cudnn", "fa2", "flashinfer")


def line(entry):
    """us alone / us in a row, of each."""

    def times(name):
        ran = entry["contenders"].get(name)
        return " / ".join(report.number(ran.get(kind), 1) for kind in ("alone", "in_a_row")) if ran else "-"

    share = entry["contenders"].get("heddle", {}).get("error_by_plain")
    return f"| {entry['name']} | {' | '.join(map(times, COLUMNS))} | {report.number(share, 2)} | {verdict(entry)} |"


def markdown(entries, missing):
    lines = [
        f"One query a sequence, {Q_HEADS} query heads on {KV_HEADS}, D {D}, bf16; us alone / us in a row.",
        f"Windows: {WINDOW_HEADS} query heads, D {WINDOW_D}, with sinks.",
        "",
        f"| | {' | '.join(COLUMNS)} | error by plain's | |",
        "|" + "---|" * (len(COLUMNS) + 3),
        *(line(entry) for entry in entries),
    ]
    for entry in entries:
        for name, ran in [("", entry), *entry["contenders"].items()]:
            if ran.get("error"):
                lines.append(f"- {entry['name']} {name}: {report.one_line(ran['error'])}")
    lines += [f"- {name} is not installed: {why}" for name, why in missing.items()]
    return "\n".join(lines) + "\n"
