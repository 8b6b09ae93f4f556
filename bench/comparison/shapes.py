"""Head dims that have no kernel of their own, or no power of two, batches whose lengths differ, on the host and on the
device, keys in pages, and tensors that TMA does not take: the time for each product, beside that of plain attentions of
the same run, of equal lengths.

A product is one multiplication of a query's and a key's numbers, or of a weight and a value's: Sq * Skv * (Dqk + Dv).
"""

import ctypes
import dataclasses
import math
import random

from comparison import contenders, criterion, library as c, mods, report, timing

LENGTH, BATCH, HEADS = 8192, 2, 16
PEERS = ("cudnn", "fa2", "fa4")


@dataclasses.dataclass(frozen=True)
class Shape:
    """`beside`: head dims of the plain attentions that it is measured against. `ragged`: lengths drawn up to s;
    `on_device`: and known there alone. `page`: rows of a page of keys; 0: there are none. `apart`: elements from the end
    of a row of keys or values to the next; where 8 does not divide it, such tensors are copied."""

    qk: int
    v: int
    beside: tuple
    ragged: bool = False
    on_device: bool = False
    page: int = 0
    apart: int = 0
    batch: int = BATCH
    heads: int = HEADS
    s: int = LENGTH
    causal: bool = False

    @property
    def d(self):
        return self.qk if self.qk == self.v else f"{self.qk}/{self.v}"

    @property
    def name(self):
        parts = ["lengths drawn"] if self.ragged else []
        parts += ["on the device"] if self.on_device else []
        parts += [f"pages of {self.page}"] if self.page else []
        parts += [f"rows {self.apart} elements apart"] if self.apart else []
        return ", ".join(parts) or "plain"

    def lengths(self):
        draws = random.Random(self.qk)
        return [draws.randint(1, self.s) for _ in range(self.batch)] if self.ragged else [self.s] * self.batch

    def products(self):
        return self.heads * (self.qk + self.v) * sum(n * n for n in self.lengths())


def all_shapes(length):
    return (
        Shape(64, 64, (), s=length),
        Shape(128, 128, (), s=length),
        Shape(80, 80, (96, 64), s=length),
        Shape(96, 96, (64, 128), s=length),
        Shape(192, 128, (128,), s=length),
        Shape(192, 192, (128,), s=length),
        Shape(64, 64, (64,), ragged=True, batch=8, s=length),
        Shape(128, 128, (128,), ragged=True, batch=8, s=length),
        *(
            Shape(d, d, (d,), s=length, **more)
            for d in (64, 128)
            for more in (
                {"ragged": True, "on_device": True, "batch": 8},
                {"page": 16},
                {"page": 128},
                {"page": 1},
                {"apart": 4},
                {"apart": 1},
            )
        ),
    )


class Inputs:
    def __init__(self, torch, shape, device):
        self.torch, self.cell, self.device = torch, shape, device
        generator = torch.Generator(device=device).manual_seed(0)
        self.q, self.k, self.v = (
            torch.randn(shape.batch, shape.s, shape.heads, d, device=device, generator=generator).to(torch.bfloat16)
            for d in (shape.qk, shape.qk, shape.v)
        )

    def bhsd(self):
        return tuple(x.transpose(1, 2) for x in (self.q, self.k, self.v))


class Stored:
    """The same numbers, as the shape stores keys and values."""

    def __init__(self, inputs):
        self.torch, self.cell, self.device = inputs.torch, inputs.cell, inputs.device
        self.q, self.table = inputs.q, None
        if self.cell.page:
            per_sequence = -(-self.cell.s // self.cell.page)
            order = self.torch.randperm(self.cell.batch * per_sequence, device=self.device)
            self.table = order.to(self.torch.int32).reshape(self.cell.batch, per_sequence)
        self.k, self.v = (self.store(x, order if self.cell.page else None) for x in (inputs.k, inputs.v))

    def store(self, x, order):
        """[B, S, H, D] memory; in pages [pages, page, H, D], the sequences' n-th in order[n]."""
        shape = self.cell
        if shape.page:
            padding = (0, 0, 0, 0, 0, -shape.s % shape.page)
            rows = self.torch.nn.functional.pad(x, padding).reshape(-1, shape.page, *x.shape[2:])
            pages = self.torch.empty_like(rows)
            pages[order] = rows
            return pages
        if shape.apart:
            wide = self.torch.empty(*x.shape[:3], x.shape[3] + shape.apart, dtype=x.dtype, device=x.device)
            wide[..., : x.shape[3]] = x
            return wide[..., : x.shape[3]]
        return x


def ours(inputs, lib):
    """Heddle, with the shape's lengths and storage."""
    shape, stored, options, kept = inputs.cell, Stored(inputs), {}, []
    if shape.ragged or shape.page:
        lengths = inputs.torch.tensor(shape.lengths(), dtype=inputs.torch.int32)
        kept.append(lengths.to(inputs.device) if shape.on_device else lengths)
        names = ("q_lengths", "kv_lengths") if shape.ragged else ("kv_lengths",)
        options = {name: ctypes.pointer(mods.view(kept[0])) for name in names}
    if shape.page:
        options["page_table"] = ctypes.pointer(mods.view(stored.table))
    attention = mods.Heddle(stored, lib, **options)
    attention.kept_lengths = kept
    return attention


def judge(inputs, o, lse):
    """Each sequence by itself, and what lies past its end. o [B, H, S, D]."""
    torch, shape = inputs.torch, inputs.cell
    if not shape.ragged:
        return criterion.Reference(torch, inputs.q, inputs.k, inputs.v, False).judge(o, lse)
    tensors, passed = {}, True
    for i, n in enumerate(shape.lengths()):
        own = slice(i, i + 1)
        sequence = (x[own, :n] for x in (inputs.q, inputs.k, inputs.v))
        reference = criterion.Reference(torch, *sequence, False, budget=criterion.BUDGET // shape.batch)
        judged = reference.judge(o[own, :, :n], lse[own, :, :n])
        past_end = bool((o[own, :, n:] == 0).all()) and bool((lse[own, :, n:] == -math.inf).all())
        passed = passed and judged["passed"] and past_end
        tensors.update({f"{name} of {i}": part for name, part in judged["tensors"].items()})
    return {"passed": passed, "tensors": tensors}


class Comparison:
    def __init__(self, torch, lib, device, rounds, say, length=LENGTH, peers=PEERS):
        self.torch, self.lib, self.device, self.rounds, self.say = torch, lib, device, rounds, say
        self.length, self.peers = length, [name for name in PEERS if name in peers]
        self.missing = {}  # peers that are not installed, and why
        self.clock = timing.clock_of(torch, device)

    def run(self):
        entries, timed = [], {}
        for shape in all_shapes(self.length):
            entry = {"d": shape.d, "mod": shape.name, "products": shape.products(), "beside": list(shape.beside)}
            entry["peer_errors"] = {}
            entries.append(entry)
            try:
                self.add(timed, entry, shape)
            except Exception as error:
                entry["error"] = f"{type(error).__name__}: {error}"[:2000]
        failed = timing.interleave(timed, self.rounds)
        for entry in entries:
            for (d, name, who), one in timed.items():
                if (d, name) == (entry["d"], entry["mod"]) and one.samples and (d, name, who) not in failed:
                    entry.setdefault("ms", {})[who] = report.median(one.samples)
        for entry in entries:
            self.say(line(entry, entries))
        return entries

    def add(self, timed, entry, shape):
        inputs = Inputs(self.torch, shape, self.device)
        attention = ours(inputs, self.lib)
        timed[shape.d, shape.name, "heddle"] = timing.Timed(attention, self.clock)
        entry["plan"] = attention.plan.explain()
        entry["check"] = judge(inputs, *attention.result())
        for name in self.peers if shape.name == "plain" else ():
            if name in self.missing:
                continue
            try:
                peer = contenders.make(name, inputs, {}, self.lib, 0)
                timed[shape.d, shape.name, name] = timing.Timed(peer, self.clock)
            except ImportError as error:
                self.missing[name] = report.one_line(str(error))
            except Exception as error:  # a peer's failure is its own
                entry["peer_errors"][name] = report.one_line(f"{type(error).__name__}: {error}")


def time_of_product(entry):
    ms = entry.get("ms", {}).get("heddle")
    return ms / entry["products"] if ms else None


def ratios(entry, entries):
    """Our time for a product, by that of the plain attentions beside it."""
    plain = {other["d"]: time_of_product(other) for other in entries if other["mod"] == "plain"}
    own = time_of_product(entry)
    return {d: own / plain[d] for d in entry["beside"] if own and plain.get(d)}


def verdict(entry):
    if entry.get("error"):
        return "ERROR"
    return "right" if entry.get("check", {}).get("passed") else "WRONG"


def line(entry, entries):
    ms = entry.get("ms", {})
    beside = ", ".join(f"{value:.2f} of D {d}" for d, value in ratios(entry, entries).items()) or "-"
    rate = 2 * entry["products"] / ms["heddle"] / 1e9 if ms.get("heddle") else None
    peers = " | ".join(report.number(ms.get(name), 3) for name in PEERS)
    return (
        f"| {entry['d']} | {entry['mod']} | {report.number(ms.get('heddle'), 3)} | {report.number(rate)} | {beside} | "
        f"{peers} | {verdict(entry)} |"
    )


def markdown(entries, missing=()):
    lines = [
        "| D | lengths | ms | TFLOP/s | time of a product | " + " | ".join(f"{name} ms" for name in PEERS) + " | |",
        "|" + "---|" * (6 + len(PEERS)),
        *(line(entry, entries) for entry in entries),
    ]
    lines += [f"- {name}, not installed: {reason}" for name, reason in dict(missing).items()]
    for entry in entries:
        if entry.get("error"):
            lines.append(f"- D {entry['d']}, {entry['mod']}: {report.one_line(entry['error'])}")
        for name, error in entry["peer_errors"].items():
            lines.append(f"- D {entry['d']}, {entry['mod']}, {name}: {error}")
    return "\n".join(lines) + "\n"
