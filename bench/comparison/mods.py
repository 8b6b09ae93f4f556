"""The mods of mod_rows.py: Heddle beside its own plain kernel, itself on the same blocks, and the peers of mod_peers.py.

What a score or weight mod costs is its time over that of the
plain kernel; what a mask costs, over that of the same kernel on the same blocks all marked full, with no mod. A bias is
beside a copy of it: it cannot be read faster than that. Sinks and another normalizer than softmax are rows like those
of mods.
"""

import ctypes
import math

from comparison import criterion, library as c, mod_peers, report, timing
from comparison.mod_rows import LENGTH, MODS, NORMALIZERS, Functions, ModCell, capture_tensors
from comparison.planned import Planned

DTYPES = {"torch.bfloat16": "bf16", "torch.float32": "f32", "torch.int32": "i32"}


def view(x):
    return c.tensor(x.data_ptr(), DTYPES[str(x.dtype)], x.shape, x.stride(), x.device.type, x.device.index or 0)


class Heddle(Planned):
    """The library on one mod; `blocks`: on a block mask instead, with none. `more`: other options of c.h."""

    def __init__(self, inputs, lib, mod=None, captures=None, blocks=None, **more):
        torch, cell = inputs.torch, inputs.cell
        self.inputs = inputs  # whose memory the plan's tensors are
        o_shape = (cell.batch, cell.s, cell.heads, inputs.v.shape[-1])
        self.o = torch.full(o_shape, math.nan, dtype=inputs.v.dtype, device=inputs.device)
        self.lse = torch.full((cell.batch, cell.heads, cell.s), math.nan, device=inputs.device)
        rows = [view(x.transpose(1, 2)) for x in (inputs.q, inputs.k, inputs.v, self.o)]
        softmax = mod is None or mod.softmax
        tensors = c.attention_tensors(*rows, view(self.lse) if softmax else None)
        if not softmax:
            self.lse = None
        self.sinks = view(captures["sinks"]) if mod and mod.sinks else None
        names = mod.captures if mod else ()
        self.views = [view(captures[name]) for name in names]
        self.captures = (c.Capture * max(1, len(names)))(
            *(c.Capture(name.encode(), ctypes.pointer(x)) for name, x in zip(names, self.views))
        )
        self.bindings = c.Bindings(captures=self.captures, capture_count=len(names))
        self.blocks = blocks
        attention = c.AttentionOptions(
            score_mod=mod.score.encode() if mod and mod.score else None,
            mask_mod=mod.mask.encode() if mod and mod.mask else None,
            weight_mod=mod.weight.encode() if mod and mod.weight else None,
            **more,
            bindings=ctypes.pointer(self.bindings),
            block_mask=blocks.handle if blocks else None,
            sinks=ctypes.pointer(self.sinks) if self.sinks else None,
            normalizer=NORMALIZERS.index(mod.normalizer) if mod else 0,
        )
        super().__init__(lib, torch, inputs.device, tensors, attention)

    def result(self):
        return self.o.transpose(1, 2), self.lse

    def kv_block(self):
        """Keys of the plan's tile: "tile 192 queries x 80 keys"."""
        return int(self.plan.explain().split(" keys,")[0].rsplit(" ", 1)[1])


def full_blocks(torch, lib, cell, mod, captures, kv_block):
    """A block mask with the mod's blocks, all of them full."""
    sequences = (c.Sequence * cell.batch)(*(c.Sequence(0, cell.s, 0, cell.s, 0, 0) for _ in range(cell.batch)))
    host = {name: captures[name].cpu() for name in mod.captures if name in mod.mask}
    views = [view(x) for x in host.values()]
    names = (c.Capture * max(1, len(host)))(
        *(c.Capture(name.encode(), ctypes.pointer(x)) for name, x in zip(host, views))
    )
    bindings = c.Bindings(captures=names, capture_count=len(host))
    common = {
        "heads": cell.heads,
        "sequences": sequences,
        "sequence_count": cell.batch,
        "sequence_size": ctypes.sizeof(c.Sequence),
        "q_block": 64,
        "kv_block": kv_block,
    }
    options = c.BlockMaskOptions(mask_mod=mod.mask.encode(), bindings=ctypes.pointer(bindings), **common)
    lines = lib.block_mask(options).text().split()
    counts = torch.zeros(1, 1, len(lines), dtype=torch.int32)
    indices = torch.zeros(1, 1, len(lines), len(lines[0]), dtype=torch.int32)
    none = torch.zeros_like(counts)
    for row, line in enumerate(lines):
        listed = [column for column, kind in enumerate(line) if kind != "."]
        counts[0, 0, row] = len(listed)
        indices[0, 0, row, : len(listed)] = torch.tensor(listed, dtype=torch.int32)
    lists = [view(x) for x in (none, torch.zeros_like(indices), counts, indices)]
    fields = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    pointers = dict(zip(fields, map(ctypes.pointer, lists)))
    return lib.block_mask(c.BlockMaskOptions(**common, **pointers))


class Copy:
    """A capture, read and written once."""

    def __init__(self, torch, source):
        self.source, self.target = source, torch.empty_like(source)

    def __call__(self):
        self.target.copy_(self.source)


class Comparison:
    def __init__(self, torch, lib, device, rounds, say, length=LENGTH, peers=mod_peers.NAMES):
        self.torch, self.lib, self.device, self.rounds, self.say = torch, lib, device, rounds, say
        self.length, self.peers, self.shared = length, [name for name in mod_peers.NAMES if name in peers], {}
        self.missing = {}  # peers that are not installed, and why
        self.clock = timing.clock_of(torch, device)

    def run(self, dims=(64, 128), mods=MODS):
        return [entry for d in dims for entry in self.compare(ModCell(d, self.length), mods)]

    def compare(self, cell, mods):
        from comparison import contenders

        inputs = contenders.Inputs(self.torch, cell, self.device)
        captures = capture_tensors(self.torch, self.device, cell)
        timed = {("plain", "heddle"): timing.Timed(Heddle(inputs, self.lib), self.clock)}
        entries = []
        for mod in mods:
            entry = {"d": cell.d, "mod": mod.name, "target": mod.targets.get(cell.d), "baseline": mod.baseline}
            entries.append(entry)
            try:
                self.add(timed, entry, inputs, captures, mod)
            except Exception as error:
                entry["error"] = f"{type(error).__name__}: {error}"[:2000]
        failed = timing.interleave(timed, self.rounds)
        for entry in entries:
            self.finish(entry, timed, failed)
            self.say(line(entry))
        return entries

    def add(self, timed, entry, inputs, captures, mod):
        score, mask = mod.make(self.torch, captures)
        ours = Heddle(inputs, self.lib, mod, captures)
        timed[mod.name, "heddle"] = timing.Timed(ours, self.clock)
        entry["plan"] = ours.plan.explain()
        sinks = captures["sinks"] if mod.sinks else None
        functions = Functions(score, mask, mod.weigh(self.torch), sinks, mod.normalizer)
        reference = criterion.Reference(self.torch, inputs.q, inputs.k, inputs.v, False, functions)
        entry["check"] = reference.judge(*ours.result())
        if mod.mask:
            blocks = full_blocks(self.torch, self.lib, inputs.cell, mod, captures, ours.kv_block())
            timed[mod.name, "blocks"] = timing.Timed(Heddle(inputs, self.lib, blocks=blocks), self.clock)
        if mod.streamed:
            copied = captures[mod.streamed]
            entry["streamed_bytes"] = copied.numel() * copied.element_size()
            timed[mod.name, "copy"] = timing.Timed(Copy(self.torch, copied), self.clock)
        entry["peers"], entry["peer_errors"], entry["peers_wrong"] = {}, {}, []
        for name in self.peers:
            if name not in self.missing:
                self.add_peer(timed, entry, name, inputs, captures, mod, reference)

    def add_peer(self, timed, entry, name, inputs, captures, mod, reference):
        if mod.sinks or not mod.softmax:
            return  # none has them
        try:
            peer = mod_peers.make(name, inputs, self.shared, captures, mod.name, *mod.make(self.torch, captures))
            timed[mod.name, name] = timing.Timed(peer, self.clock)
            # A peer's own random draws are unknown here, so its result with a weight is not judged.
            if not mod.weight and not reference.judge(peer.result()[0], None)["passed"]:
                entry["peers_wrong"].append(name)
        except mod_peers.Unable:
            pass
        except ImportError as error:
            self.missing[name] = report.one_line(str(error))
            self.say(f"{name} is not installed: {error}")
        except Exception as error:  # a peer's failure is its own
            entry["peer_errors"][name] = report.one_line(f"{type(error).__name__}: {error}")

    def finish(self, entry, timed, failed):
        def ms(name, who):
            one = timed.get((name, who))
            return report.median(one.samples) if one and one.samples and (name, who) not in failed else None

        name = entry["mod"]
        entry["ms"] = ms(name, "heddle")
        entry["peers"] = {peer: ms(name, peer) for peer in self.peers if ms(name, peer)}
        entry["copy_ms"] = ms(name, "copy")
        entry["baseline_ms"] = ms("plain", "heddle") if entry["baseline"] == "plain" else ms(name, "blocks")


def ratio(entry):
    return entry["ms"] / entry["baseline_ms"] if entry.get("ms") and entry.get("baseline_ms") else None


def verdict(entry):
    if entry.get("error"):
        return "ERROR"
    if not entry.get("check", {}).get("passed"):
        return "WRONG"
    if ratio(entry) is None:
        return "-"
    return "ok" if ratio(entry) <= entry["target"] else "MISS"


def peer_text(entry, name):
    """A peer's milliseconds; marked where its result fails the criterion."""
    return report.number(entry.get("peers", {}).get(name), 3) + ("!" if name in entry.get("peers_wrong", ()) else "")


def line(entry):
    number = report.number
    best = min(entry.get("peers", {}).values(), default=None)
    against = number(best / entry["ms"], 2) if best and entry.get("ms") else "-"
    share = max(part["share"] for part in entry["check"]["tensors"].values()) if "check" in entry else None
    peers = " | ".join(peer_text(entry, name) for name in mod_peers.NAMES)
    return (
        f"| {entry['d']} | {entry['mod']} | {number(entry.get('ms'), 3)} | {number(ratio(entry), 2)} | "
        f"{entry['baseline']} | {number(entry['target'], 2)} | {peers} | {against} | {number(share, 2)} | "
        f"{verdict(entry)} |"
    )


def streamed_line(entry):
    """How fast a bias is read, beside a copy of it."""
    gigabytes = entry["streamed_bytes"] / 1e9
    return (
        f"- D {entry['d']}, {entry['mod']}: {gigabytes:.3g} GB, read once within the call at "
        f"{1e3 * gigabytes / entry['ms']:.0f} GB/s; a copy of it reads and writes "
        f"{2e3 * gigabytes / entry['copy_ms']:.0f} GB/s"
    )


def markdown(entries, missing=()):
    lines = [
        "| D | mod | ms | x baseline | baseline | target | "
        + " | ".join(f"{name} ms" for name in mod_peers.NAMES)
        + " | best peer / Heddle | share of the criterion | |",
        "|" + "---|" * (9 + len(mod_peers.NAMES)),
        *(line(entry) for entry in entries),
    ]
    lines += [streamed_line(entry) for entry in entries if entry.get("copy_ms") and entry.get("ms")]
    if any(entry.get("peers_wrong") for entry in entries):
        lines.append("- !: that peer's o fails the criterion")
    lines += [f"- {name}, not installed: {reason}" for name, reason in dict(missing).items()]
    for entry in entries:
        if entry.get("error"):
            lines.append(f"- D {entry['d']}, {entry['mod']}, error: {report.one_line(entry['error'])}")
        for name, error in entry.get("peer_errors", {}).items():
            lines.append(f"- D {entry['d']}, {entry['mod']}, {name}: {error}")
    return "\n".join(lines) + "\n"
