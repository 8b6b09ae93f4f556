"""The comparison of whole cells: contenders are made, judged, timed in shuffled rounds; results are plain data."""

import datetime
import time

from comparison import contenders as forwards
from comparison import extras, grid, library, timing
from comparison import report as common
from comparison.backward import cells, contenders, criterion, report


class Comparison:
    """`chosen`: the arguments of compare.py. `say` takes a line for the terminal."""

    def __init__(self, torch, lib, chosen, say):
        self.torch, self.lib, self.device, self.rounds = torch, lib, chosen.device, chosen.rounds
        self.chosen, self.say, self.shared = chosen, say, {}
        self.clock = timing.clock_of(torch, self.device, chosen.sustained)
        self.names = ["heddle", *(name for name in contenders.PEERS if name in chosen.peers)]
        self.deterministic = []
        if chosen.deterministic:
            self.deterministic = [f"{name}-det" for name in self.names if name in contenders.WITH_MODES]
        self.missing = {}  # peers that are not installed, and why
        torch.backends.cuda.matmul.allow_tf32 = False  # plain is f32
        self.results = {
            "title": "Attention backward, bf16",
            "device": machine(torch, self.device),
            "date": f"{datetime.datetime.now():%Y-%m-%d %H:%M}",
            "versions": versions(torch, lib),
            "method": f"TFLOP/s of the backward alone (five products; causal counts half), batch · S = {grid.TOKENS}, "
            f"H · D = {grid.WIDTH} (GQA: {' query heads on '.join(map(str, cells.GROUPED_HEADS))} KV heads), "
            f"[B, S, H, D] strides, random normal inputs, {timing.method(chosen.sustained)} median of {self.rounds} "
            "shuffled rounds.",
            "rounds": self.rounds,
            "contenders": self.names + (["gemm"] if "gemm" in chosen.peers else []),
            "deterministic": self.deterministic,
            "cells": [],
            "missing": self.missing,
        }

    def run(self, save=lambda results: None):
        begin = time.monotonic()
        for cell in grid.in_time(self.chosen.cells, self.chosen.seconds, self.say):
            entry = grid.entry_of(cell, "kv_heads", "target", "counts")
            self.results["cells"].append(entry)
            try:
                self.compare(cell, entry["contenders"])
            except Exception as error:  # the other cells still count
                entry["contenders"].setdefault("heddle", {})["error"] = short(error)
            self.say(report.cell_line(entry) + f" | {time.monotonic() - begin:.0f} s")
            for name, ran in entry["contenders"].items():
                for kind in ("refused", "error", "check_error"):
                    if ran.get(kind):
                        self.say(f"           {name}: {kind}: {common.one_line(ran[kind])}")
            save(self.results)
        kernels = [cell for cell in cells.quick_cells() if cell.counts]
        if not self.chosen.no_extras:
            self.results["extras"] = extras.compile_extras(self.lib, self.device, kernels, backward=True)
        return self.results

    def compare(self, cell, entry):
        inputs = contenders.Inputs(self.torch, cell, self.device)
        made, timed = {}, {}
        for name in self.results["contenders"] + self.deterministic:
            if name.removesuffix(contenders.DETERMINISTIC) not in self.missing:
                self.add(name, inputs, made, timed, entry)
        attentions = {name: made[name] for name in timed if name != "gemm"}
        self.check(inputs, attentions, entry)
        first = {name: kept(attentions[name]) for name in self.deterministic if name in attentions}
        for name, error in timing.interleave(timed, self.rounds).items():
            entry[name]["error"] = short(error)
        for name, gradients in first.items():
            if not all(map(self.torch.equal, gradients, attentions[name].result())):
                entry[name].setdefault("error", "a later run gave other bits than the first")
        for name, one in timed.items():
            if one.samples and not entry[name].get("error"):
                ms = common.median(one.samples)
                flops = made[name].flops if name == "gemm" else cell.flops
                entry[name].update(ms=ms, tflops=flops / ms / 1e9, samples=one.samples, host_ms=one.host_ms)
        if "heddle" in timed:
            plan = made["heddle"].plan
            entry["heddle"].update(plan=plan.explain(), workspace_bytes=plan.workspace_bytes())
        made.clear()
        timed.clear()
        attentions.clear()
        if self.device == "cuda":
            self.torch.cuda.empty_cache()

    def add(self, name, inputs, made, timed, entry):
        try:
            if name == "gemm":
                made[name] = forwards.Gemm(inputs, self.shared, grid.GEMM_SIZE if self.device == "cuda" else 256)
            else:
                made[name] = contenders.make(name, inputs, self.shared, self.lib)
            timed[name] = timing.Timed(made[name], self.clock)
            entry[name] = {}
        except ImportError as error:
            self.missing[name] = str(error)
            self.say(f"{name} is not installed: {error}")
        except library.HeddleError as error:
            entry[name] = {"refused" if error.status == "unsupported" else "error": short(error)}
        except Exception as error:
            entry[name] = {"error": short(error)}

    def check(self, inputs, made, entry):
        """Judges what each contender's last call wrote."""
        judged = criterion.Inputs(self.torch, inputs.q, inputs.k, inputs.v, inputs.d_o, inputs.cell.causal)
        try:
            reference = criterion.Reference(judged)
        except Exception as error:
            for name in made:
                entry[name]["check_error"] = f"no float64 reference: {short(error)}"
            return
        for name, contender in made.items():
            try:
                entry[name]["check"] = reference.judge(contender.result(), *contender.stored())
            except Exception as error:
                entry[name]["check_error"] = short(error)


def machine(torch, device):
    return torch.cuda.get_device_name(0) if device == "cuda" else "CPU, a trial"


def versions(torch, lib):
    return (
        f"Heddle {lib.version()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"cuDNN {torch.backends.cudnn.version()}"
    )


def kept(contender):
    return [x.clone() for x in contender.result()]


def short(error):
    return f"{type(error).__name__}: {error}"[:2000]
