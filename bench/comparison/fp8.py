"""Eight bits: e4m3 q, k, v with descale factors at head dim 128, beside a GEMM of e4m3 and cuDNN's bf16 attention.

The figures to reach are FlashAttention-3's on an H100 (its benchmark, batch * S = 16384, H * D = 2048), scaled by what
the GEMM of the same run does beside the one of theirs.
"""

import ctypes
import math

from comparison import contenders, criterion, report, timing
from comparison import library as c
from comparison.planned import Planned

ANCHOR_GEMM = 1302.0  # TFLOP/s of an e4m3 GEMM beside these
ANCHORS = {False: {2048: 824, 8192: 934, 16384: 940}, True: {2048: 684, 8192: 872, 16384: 906}}
TOKENS, HEADS, D = 16384, 16, 128
GEMM_SIZE = 8192
GPU_FLOOR_UNIT = 2.0**-14  # of sums of products of 8 bits (heddle/check.h)


class Cell:
    def __init__(self, causal, s, tokens=TOKENS):
        self.causal, self.s, self.d, self.heads, self.batch = causal, s, D, HEADS, max(1, tokens // s)
        self.flops = 4 * self.batch * HEADS * s * s * D / (2 if causal else 1)
        self.name = f"{'causal' if causal else 'full'}/S{s}"


class Inputs(contenders.Inputs):
    """The bf16 tensors, and what they are in e4m3: divided by a factor of each batch entry and head."""

    def __init__(self, torch, cell, device):
        super().__init__(torch, cell, device)
        self.stored, self.factors = [], []
        for x in (self.q, self.k, self.v):
            factor = x.abs().amax(dim=(1, 3)).float() / 400  # [B, H]
            self.stored.append((x.float() / factor[:, None, :, None]).to(torch.float8_e4m3fn))
            self.factors.append(factor.contiguous())


class Heddle(Planned):
    def __init__(self, inputs, lib):
        torch, cell = inputs.torch, inputs.cell
        device = "cpu" if inputs.device == "cpu" else "cuda"

        def view(x, dtype, heads_first=False):
            x = x if heads_first else x.transpose(1, 2)
            return c.tensor(x.data_ptr(), dtype, x.shape, x.stride(), device, x.device.index or 0)

        self.o = torch.full_like(inputs.q, math.nan)
        self.lse = torch.full((cell.batch, cell.heads, cell.s), math.nan, device=inputs.device)
        stored = [view(x, "e4m3") for x in inputs.stored]
        tensors = c.attention_tensors(*stored, view(self.o, "bf16"), view(self.lse, "f32", heads_first=True))
        factors = [view(x, "f32", heads_first=True) for x in inputs.factors]
        names = ("q_descale", "k_descale", "v_descale")
        attention = c.AttentionOptions(
            mask_mod=contenders.MASKS[cell.causal], **dict(zip(names, map(ctypes.pointer, factors)))
        )
        self.kept = inputs, factors
        super().__init__(lib, torch, inputs.device, tensors, attention)


class Gemm:
    """A square product of e4m3 into bf16."""

    def __init__(self, torch, size, device):
        self.torch, self.flops = torch, 2.0 * size**3
        a, b = (torch.randn(size, size, device=device).to(torch.float8_e4m3fn) for _ in range(2))
        self.a, self.b, self.one = a, b.t(), torch.ones((), device=device)

    def __call__(self):
        self.torch._scaled_mm(
            self.a, self.b, scale_a=self.one, scale_b=self.one, out_dtype=self.torch.bfloat16, use_fast_accum=True
        )


def rounded(torch, p, bits=4):
    """To e4m3's precision, whatever its range."""
    fraction, exponent = torch.frexp(p)
    return torch.ldexp(torch.round(fraction * 2**bits), exponent - bits)


def judge(inputs, o, lse, budget=criterion.BUDGET):
    torch, cell = inputs.torch, inputs.cell
    q, k, v = (x.double() * factor[:, None, :, None] for x, factor in zip(inputs.stored, inputs.factors))
    floor_unit = criterion.FLOOR_UNIT if inputs.device == "cpu" else GPU_FLOOR_UNIT
    storage = criterion.Storage(2.0**-4, floor_unit, lambda p: rounded(torch, p))
    reference = criterion.Reference(torch, q, k, v, cell.causal, budget=budget, storage=storage)
    return reference.judge(o.transpose(1, 2), lse)


class Comparison:
    def __init__(self, torch, lib, device, rounds, say, lengths=(2048, 8192, 16384), tokens=TOKENS):
        self.torch, self.lib, self.device, self.rounds, self.say = torch, lib, device, rounds, say
        self.cells = [Cell(causal, s, tokens) for causal in (False, True) for s in lengths]
        self.clock = timing.clock_of(torch, device)

    def run(self):
        entries = []
        for cell in self.cells:
            entry = {"name": cell.name, "anchor": ANCHORS[cell.causal].get(cell.s)}
            entries.append(entry)
            try:
                self.compare(cell, entry)
            except Exception as error:  # the other cells still count
                entry["error"] = f"{type(error).__name__}: {error}"[:2000]
            self.say(line(entry))
        return entries

    def compare(self, cell, entry):
        inputs = Inputs(self.torch, cell, self.device)
        ours = Heddle(inputs, self.lib)
        entry["plan"] = ours.plan.explain()
        timed = {"heddle": timing.Timed(ours, self.clock)}
        entry["check"] = judge(inputs, ours.o, ours.lse)
        flops = {"heddle": cell.flops, "cudnn": cell.flops}
        if self.device != "cpu":
            gemm = Gemm(self.torch, GEMM_SIZE, self.device)
            flops["gemm"] = gemm.flops
            timed["gemm"] = timing.Timed(gemm, self.clock)
            try:
                timed["cudnn"] = timing.Timed(contenders.cudnn(inputs, None), self.clock)
            except Exception as error:  # only for scale
                entry["cudnn_error"] = report.one_line(str(error))
        failed = timing.interleave(timed, self.rounds)
        if "heddle" in failed:
            raise failed["heddle"]
        for name, one in timed.items():
            if one.samples and name not in failed:
                entry[name] = flops[name] / report.median(one.samples) / 1e9


def target(entry):
    """FlashAttention-3's figure, by the GEMM of this run."""
    return entry["anchor"] * entry["gemm"] / ANCHOR_GEMM if entry.get("anchor") and entry.get("gemm") else None


def verdict(entry):
    if entry.get("error"):
        return "ERROR"
    if not entry["check"]["passed"]:
        return "WRONG"
    if target(entry) is None:
        return "-"
    return "ok" if entry["heddle"] >= target(entry) else "MISS"


def line(entry):
    number = report.number
    share = max(part["share"] for part in entry["check"]["tensors"].values()) if "check" in entry else None
    return (
        f"| {entry['name']} | {number(entry.get('heddle'))} | {number(target(entry))} | {number(entry.get('gemm'))} | "
        f"{number(entry.get('cudnn'))} | {number(share, 2)} | {verdict(entry)} |"
    )


def markdown(entries):
    lines = [
        "| D 128 | Heddle, e4m3 | FlashAttention-3's, scaled | GEMM, e4m3 | cuDNN, bf16 | share of the criterion | |",
        "|" + "---|" * 7,
        *(line(entry) for entry in entries),
    ]
    for entry in entries:
        for kind in ("error", "cudnn_error"):
            if entry.get(kind):
                lines.append(f"- {entry['name']}, {kind}: {report.one_line(entry[kind])}")
    return "\n".join(lines) + "\n"
