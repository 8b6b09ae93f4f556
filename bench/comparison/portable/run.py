"""The portable families' table: each cell's contenders are made, timed in shuffled rounds, and asked for their memory.
Results are plain data. What Heddle writes is held to the criterion of heddle/check.h on a short problem of each kernel.
"""

import os
import tempfile
import time
from unittest import mock

from comparison import grid, library, mod_rows, report as common, timing
from comparison.backward.run import machine, short, versions
from comparison.portable import cells, contenders
from comparison.portable.report import line, mod_line

CHECKED_ROWS = 400


class Comparison:
    """`chosen`: the arguments of compare.py. `say` takes a line for the terminal."""

    def __init__(self, torch, lib, chosen, say):
        self.torch, self.lib, self.device, self.rounds = torch, lib, chosen.device, chosen.rounds
        self.chosen, self.say = chosen, say
        self.clock = timing.clock_of(torch, self.device)
        self.mod_rows = mod_rows.LENGTH if self.device == "cuda" else 256
        self.results = {
            "device": machine(torch, self.device),
            "versions": versions(torch, lib),
            "rounds": self.rounds,
            "mod_rows": self.mod_rows,
            "cells": [],
            "mods": [],
        }

    def run(self, save=lambda results: None):
        begin = time.monotonic()
        # Every kernel is compiled here, so that planning tells what that takes.
        with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, HEDDLE_CACHE_DIR=cache):
            for cell in grid.in_time(self.chosen.cells, self.chosen.seconds, self.say):
                entry = {"name": cell.name, "target": cell.target, "heddle": {}, "peers": {}}
                self.results["cells"].append(entry)
                self.attempt(entry, lambda: self.compare(cell, entry))
                self.say(f"{line(entry)} | {time.monotonic() - begin:.0f} s")
                save(self.results)
            if not (self.chosen.quick or self.chosen.no_extras or self.chosen.only):
                for of_pass in cells.PASSES:
                    for d in cells.DIMS:
                        if time.monotonic() - begin < self.chosen.seconds:
                            self.compare_mods(of_pass, d)
                            save(self.results)
        return self.results

    def attempt(self, entry, take):
        """An entry of which something failed tells why; the others still count."""
        try:
            take()
        except Exception as error:
            entry["error"] = short(error)
        if self.device == "cuda":
            self.torch.cuda.empty_cache()

    def compare(self, cell, entry):
        tf32 = cell.dtype == "tf32"
        self.torch.backends.cuda.matmul.allow_tf32 = tf32
        self.check(cell, entry["heddle"], tf32)
        inputs = contenders.Inputs(self.torch, cell, self.device)
        made = {"heddle": contenders.heddle(inputs, self.lib, cell.of_pass, *self.mask(cell), tf32=tf32)}
        kernel = made["heddle"].plan
        entry["heddle"] |= {"plan": kernel.explain(), "bytes": self.memory_of_heddle(made["heddle"], inputs)}
        timed = {"heddle": timing.Timed(made["heddle"], self.clock)}
        for name in contenders.PEERS_OF[cell.dtype]:
            ran = entry["peers"][name] = {}
            try:
                call = contenders.peer(name, inputs)
                ran["bytes"] = self.memory_of(call)
                timed[name] = timing.Timed(call, self.clock)
            except Exception as error:  # takes no such problem, or no matrices of that size
                ran["error"] = short(error)
        failed = timing.interleave(timed, self.rounds)
        for name, one in timed.items():
            ran = entry["heddle"] if name == "heddle" else entry["peers"][name]
            if name in failed:
                ran["error"] = short(failed[name])
            elif one.samples:
                ms = common.median(one.samples)
                ran.update(ms=ms, tflops=cell.flops / ms / 1e9)

    @staticmethod
    def mask(cell):
        """The mod of a cell, and its captures."""
        return (next(mod for mod in mod_rows.MODS if mod.name == "causal") if cell.causal else None, {})

    def check(self, cell, ran, tf32):
        """A short problem of the same kernel. Planning it compiles the kernel."""
        small = cells.Cell(cell.of_pass, cell.dtype, cell.d, cell.causal, CHECKED_ROWS, tokens=1)
        inputs = contenders.Inputs(self.torch, small, self.device)
        begin = time.perf_counter()
        call = contenders.heddle(inputs, self.lib, cell.of_pass, *self.mask(cell), tf32=tf32)
        ran["plan_seconds"] = time.perf_counter() - begin
        call()
        self.clock.synchronize()
        judge = self.lib.check_backward if cell.backward else self.lib.check_attention
        ran["passed"], report = judge(call.tensors, call.attention)
        if not ran["passed"]:
            ran["report"] = report

    def memory_of(self, call):
        """Bytes that a call takes beside its inputs, its results among them; None on a CPU."""
        if self.device == "cpu":
            return None
        cuda = self.torch.cuda
        call()
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        call()
        cuda.synchronize()
        return cuda.max_memory_allocated() - before

    @staticmethod
    def memory_of_heddle(call, inputs):
        """Likewise: results and workspace."""
        written = 3 if inputs.cell.backward else 1
        return call.plan.workspace_bytes() + written * inputs.q.numel() * inputs.q.element_size()

    def compare_mods(self, of_pass, d):
        cell = mod_rows.ModCell(d, self.mod_rows)
        inputs = contenders.Inputs(self.torch, cell, self.device)
        captures = mod_rows.capture_tensors(self.torch, self.device, cell)
        timed, entries = {}, {}
        for name in (None, *cells.MODS):
            mod = next((mod for mod in mod_rows.MODS if mod.name == name), None)
            entry = entries[name] = {"pass": of_pass, "d": d, "mod": name or "none"}
            self.results["mods"].append(entry)
            try:
                entry["share"] = self.attended(mod, captures)
                timed[name] = timing.Timed(contenders.heddle(inputs, self.lib, of_pass, mod, captures), self.clock)
            except library.HeddleError as error:
                entry["error"] = short(error)
        timing.interleave(timed, self.rounds)
        for name, one in timed.items():
            if one.samples:
                entries[name]["ms"] = common.median(one.samples)
        for name, entry in entries.items():
            if "ms" in entry and "ms" in entries[None]:
                entry["cost"] = entry["ms"] / (entries[None]["ms"] * entry["share"])
            self.say(mod_line(entry))

    def attended(self, mod, captures):
        """The share of pairs that the mask lets attend."""
        if mod is None or not mod.mask:
            return 1.0
        mask, rows = mod.make(self.torch, captures)[1], min(1024, self.mod_rows)
        keys = self.torch.arange(self.mod_rows, device=self.device)[None, :]
        count = 0
        for begin in range(0, self.mod_rows, rows):
            queries = self.torch.arange(begin, begin + rows, device=self.device)[:, None]
            count += mask(queries, keys).sum().item()
        return count / self.mod_rows**2
