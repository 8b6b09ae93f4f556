"""The backward with mods and masks, and with gradients of what mods read: B 2, H 16, S 8192, D 128, bf16.

What a row must reach is a time, measured beside cuDNN's plain backward and scaled by what that takes in this run, or a
factor of another row's time.
"""

import dataclasses
import time

from comparison import library
from comparison import mod_rows as forward
from comparison import report as common
from comparison import timing
from comparison.backward import contenders, criterion, mod_peers
from comparison.backward.run import kept, machine, short, versions

DIM = 128
TRIAL_LENGTH = 256  # on a CPU

# cuDNN's plain backward in the run whose times the targets in milliseconds follow (one H200, November 2026).
ANCHOR_MS = {"full": 4.66, "causal": 2.58}


@dataclasses.dataclass(frozen=True)
class Mod:
    """`of`: the forward's mod; None: plain. `reads`: captures whose gradients are computed, as criterion.Inputs has
    them. Targets: `ms` beside ANCHOR_MS[`anchor`], or `factor` of the row named `beside`."""

    name: str
    of: forward.Mod | None
    reads: dict = dataclasses.field(default_factory=dict)
    ms: float | None = None
    anchor: str = "causal"
    factor: float | None = None
    beside: str = ""

    @property
    def key(self):
        """What the peers know the mod by."""
        return self.of.name if self.of else "full"


def named(name):
    return next(mod for mod in forward.MODS if mod.name == name)


KEY_BIAS = forward.Mod(
    "key bias",
    {},
    score="score + key_bias[kv_idx]",
    captures=("key_bias",),
    make=lambda torch, x: (lambda t, h, q, k: t + x["key_bias"][k], None),
)
OF_SLOPES = {"slopes": (("h",), lambda q, k: k - q)}
OF_BIAS = {"bias": (("h", "q", "k"), None)}
OF_KEY_BIAS = {"key_bias": (("k",), None)}

MODS = (
    Mod("full", None),
    Mod("causal", named("causal")),
    Mod("window 1024", named("window 1024"), ms=0.65),
    Mod("documents, causal", named("documents, causal"), ms=0.75),
    Mod("prefix 1024", named("prefix 1024"), ms=2.2),
    Mod("ALiBi, causal", named("ALiBi, causal"), ms=2.35),
    Mod("softcap 20", named("softcap 20"), ms=5.8, anchor="full"),
    Mod("relative position", named("relative position"), factor=1.10, beside="full"),
    Mod("dropout", named("dropout"), factor=1.4, beside="full"),
    Mod("bias, bf16", named("bias, bf16")),
    Mod("bias, bf16, and its gradient", named("bias, bf16"), OF_BIAS, factor=1.5, beside="full"),
    Mod(
        "ALiBi, causal, and the slopes' gradient",
        named("ALiBi, causal"),
        OF_SLOPES,
        factor=1.05,
        beside="ALiBi, causal",
    ),
    Mod("key bias", KEY_BIAS),
    Mod("key bias, and its gradient", KEY_BIAS, OF_KEY_BIAS, factor=1.05, beside="key bias"),
)


def capture_tensors(torch, device, cell):
    generator = torch.Generator(device=device).manual_seed(2)
    key_bias = torch.randn(cell.s, device=device, generator=generator)
    return forward.capture_tensors(torch, device, cell) | {"key_bias": key_bias}


class Comparison:
    def __init__(self, torch, lib, chosen, say):
        self.torch, self.lib, self.device, self.rounds, self.say = torch, lib, chosen.device, chosen.rounds, say
        self.peers, self.shared, self.missing = [name for name in mod_peers.NAMES if name in chosen.peers], {}, {}
        self.mods = [mod for mod in MODS if not chosen.mods or mod.name in chosen.mods]
        self.deterministic, self.seconds = chosen.deterministic, chosen.seconds
        self.length = forward.LENGTH if self.device == "cuda" else TRIAL_LENGTH
        self.clock = timing.clock_of(torch, self.device)
        torch.backends.cuda.matmul.allow_tf32 = False  # plain is f32

    def run(self):
        cell = forward.ModCell(DIM, self.length)
        inputs = contenders.Inputs(self.torch, cell, self.device)
        captures = capture_tensors(self.torch, self.device, cell)
        entries, timed = [], {}
        begin = time.monotonic()
        for mod in self.mods:
            if time.monotonic() - begin > self.seconds:
                self.say(f"stopping before {mod.name}: --seconds {self.seconds:g} are over")
                break
            entry = {"mod": mod.name, "target_ms": mod.ms, "anchor": mod.anchor, "factor": mod.factor}
            entry |= {"beside": mod.beside, "contenders": {}}
            entries.append(entry)
            self.add_row(timed, entry["contenders"], inputs, captures, mod)
            ready = ", ".join(name for who, name in timed if who == mod.name) or "none"
            self.say(f"{mod.name}: {ready} ready after {time.monotonic() - begin:.0f} s")
        failed = timing.interleave(timed, self.rounds)
        for entry in entries:
            self.finish(entry, timed, failed)
        for entry in entries:
            self.say(line(entry, entries, self.names()))
        return {
            "mods": entries,
            "contenders": self.names(),
            "missing": self.missing,
            "rounds": self.rounds,
            "length": self.length,
            "device": machine(self.torch, self.device),
            "versions": versions(self.torch, self.lib),
        }

    def names(self):
        free = ["heddle", *self.peers]
        return free + ([f"{name}-det" for name in free if name in contenders.WITH_MODES] if self.deterministic else [])

    def add_row(self, timed, ran, inputs, captures, mod):
        judged = self.judged(inputs, captures, mod)
        try:
            reference, why = criterion.Reference(judged), None
        except Exception as error:
            reference, why = None, f"no float64 reference: {short(error)}"
        for name in self.names():
            if name.removesuffix(contenders.DETERMINISTIC) in self.missing:
                continue
            try:
                one = self.make(name, inputs, captures, mod)
                timed[mod.name, name] = timing.Timed(one, self.clock)
                ran[name] = {}
            except mod_peers.Unable:
                continue
            except ImportError as error:
                self.missing[name] = common.one_line(str(error))
                self.say(f"{name} is not installed: {error}")
                continue
            except library.HeddleError as error:
                ran[name] = {"refused" if error.status == "unsupported" else "error": short(error)}
                continue
            except Exception as error:
                ran[name] = {"error": short(error)}
                continue
            if name.startswith("heddle"):
                ran[name].update(plan=one.plan.explain(), workspace_bytes=one.plan.workspace_bytes())
            if mod.key == "dropout" and not name.startswith("heddle"):
                continue  # what a peer draws is not ours to know
            if reference is None:
                ran[name]["check_error"] = why
                continue
            try:
                ran[name]["check"] = reference.judge(one.result(), *one.stored(), one.captures)
            except Exception as error:
                ran[name]["check_error"] = short(error)
            if name.endswith(contenders.DETERMINISTIC):
                first = kept(one)
                one()
                if not all(map(self.torch.equal, first, one.result())):
                    ran[name]["error"] = "a later run gave other bits than the first"

    def judged(self, inputs, captures, mod):
        functions = None
        if mod.of:
            score, mask = mod.of.make(self.torch, captures)
            functions = forward.Functions(score, mask, mod.of.weigh(self.torch))
        return criterion.Inputs(self.torch, inputs.q, inputs.k, inputs.v, inputs.d_o, False, functions, mod.reads)

    def make(self, name, inputs, captures, mod):
        deterministic = name.endswith(contenders.DETERMINISTIC)
        name = name.removesuffix(contenders.DETERMINISTIC)
        if name == "heddle":
            return contenders.Heddle(inputs, self.lib, mod.of, captures, tuple(mod.reads), deterministic)
        return mod_peers.make(name, inputs, self.shared, captures, mod, deterministic)

    def finish(self, entry, timed, failed):
        for name, ran in entry["contenders"].items():
            key = entry["mod"], name
            if key in failed:
                ran["error"] = short(failed[key])
            elif key in timed and timed[key].samples and not ran.get("error"):
                ran.update(ms=common.median(timed[key].samples), samples=timed[key].samples)


def ms_of(entry, name):
    """Milliseconds; None of who did not run. A peer whose gradients fail the criterion still counts, marked."""
    return entry["contenders"].get(name, {}).get("ms")


def row(entries, name):
    return next((entry for entry in entries if entry["mod"] == name), None)


def target_ms(entry, entries):
    """Milliseconds of this run that the row must reach; None without what it is relative to."""
    if entry["factor"]:
        beside = row(entries, entry["beside"])
        base = ms_of(beside, "heddle") if beside else None
        return entry["factor"] * base if base else None
    if entry["target_ms"] is None:
        return None
    anchor = row(entries, entry["anchor"])
    now = ms_of(anchor, "cudnn") if anchor else None
    return entry["target_ms"] * (now / ANCHOR_MS[entry["anchor"]] if now else 1)


def verdict(entry, entries):
    ours = entry["contenders"].get("heddle", {})
    if ours.get("refused"):
        return "REFUSED"
    if ours.get("error"):
        return "ERROR"
    if "check" not in ours:
        return "UNCHECKED"
    if not ours["check"]["passed"]:
        return "WRONG"
    target = target_ms(entry, entries)
    return "-" if target is None or not ours.get("ms") else "ok" if ours["ms"] <= target else "MISS"


def failed(results):
    return any(verdict(entry, results["mods"]) in ("ERROR", "UNCHECKED", "WRONG") for entry in results["mods"])


def cell_of(entry, name):
    ran = entry["contenders"].get(name, {})
    if ran.get("refused"):
        return "refused"
    wrong = ran.get("check", {}).get("passed") is False
    return common.number(ran.get("ms"), 3) + ("!" if wrong else "")


def line(entry, entries, names):
    ours = entry["contenders"].get("heddle", {})
    peers = [ms for name in names if name != "heddle" and not name.endswith("-det") and (ms := ms_of(entry, name))]
    against = min(peers) / ours["ms"] if peers and ours.get("ms") else None
    parts = ours.get("check", {}).get("tensors", {}).values()
    share = max((part["share"] for part in parts), default=None)
    times = " | ".join(cell_of(entry, name) for name in names)
    return (
        f"| {entry['mod']} | {times} | {common.number(target_ms(entry, entries), 3)} | {common.number(against, 2)} | "
        f"{common.number(share, 2)} | {verdict(entry, entries)} |"
    )


def markdown(results):
    names, entries = results["contenders"], results["mods"]
    lines = [
        f"Backward, B {forward.BATCH}, H {forward.HEADS}, S {results['length']}, D {DIM}, bf16, milliseconds, "
        f"median of {results['rounds']} shuffled rounds. {results['device']}; {results['versions']}",
        "",
        "| mod | " + " | ".join(names) + " | target | best peer / Heddle | share of the criterion | |",
        "|" + "---|" * (5 + len(names)),
        *(line(entry, entries, names) for entry in entries),
    ]
    text = "".join(lines)
    if "!" in text:
        lines.append("- !: these gradients fail the criterion")
    for name, reason in results["missing"].items():
        lines.append(f"- {name}, not installed: {reason}")
    for entry in entries:
        for name, ran in entry["contenders"].items():
            for kind in ("refused", "error", "check_error"):
                if ran.get(kind):
                    lines.append(f"- {entry['mod']}, {name}, {kind}: {common.one_line(ran[kind])}")
    return "\n".join(lines) + "\n"
