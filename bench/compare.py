#!/usr/bin/env python3
"""Heddle beside the best fused attention on the same GPU, in one process.

Every contender gets the same random q, k, v (bf16, [B, S, H, D] memory, batch * S = 16384, H * D = 2048) and writes the
log-sum-exp where it can. Results are held to the criterion of heddle/check.h against float64. Rounds are interleaved;
the median of the rounds counts; a bf16 GEMM of 8192 x 8192 x 8192 runs along as the yardstick. Heddle is called through
its C interface, as any program would call it. A contender or a cell that fails does not stop the others.

    compare.py --out DIR                      the whole grid: DIR/compare.{md,json,svg}
    compare.py --only D128/causal S512        some cells
    compare.py --mods                         mods, masks and shapes instead (comparison/mod_rows.py, shapes.py)
    compare.py --fp8                          e4m3 beside an e4m3 GEMM instead (comparison/fp8.py)
    compare.py --decode [GROUP...]            few queries beside a plain read instead (groups: comparison/decode/cells.py)
    compare.py --backward [--deterministic]   the backward instead, without autograd (comparison/backward)
    compare.py [--backward] --sustained       calls in a row for 0.3 s, L2 not flushed: files are named *_sustained
    compare.py --backward --mods              the backward with mods and masks, and gradients of what they read
    compare.py --family portable              the portable families beside PyTorch's attention (comparison/portable):
                                              bf16, f32 and tf32, both passes, mods, memory, compile times
    compare.py --draw DIR/compare.json        the curves of an earlier run (needs Matplotlib, not PyTorch)
"""

import argparse
import datetime
import json
import math
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from comparison import contenders, grid, library, report  # noqa: E402
from comparison.backward import cells  # noqa: E402
from comparison.decode import cells as decode_cells  # noqa: E402
from comparison.portable import cells as portable_cells  # noqa: E402


def say(text):
    print(text, file=sys.stderr, flush=True)


def read_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for compare.md, compare.json and compare.svg")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument("--only", nargs="+", metavar="CELL", help="cells such as D128/causal/S8192, D64, causal, S512; with --decode B1, S1024, paged")
    parser.add_argument(
        "--peers", default=",".join(contenders.CONTENDERS[1:]), metavar="NAMES", help="comma-separated: %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=7, help="samples of each contender, at least 5 (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="one cell a kernel, and no more than 5 rounds")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no new cell after that long")
    parser.add_argument("--no-extras", action="store_true", help="throughput only: no compile times, host cost, graph; with --decode no families but the planner's choice")
    parser.add_argument("--library", help="libheddle_c.so ($HEDDLE_LIBRARY, or the one built last under build/)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu tries the program out, slowly")
    parser.add_argument(
        "--mods",
        nargs="*",
        metavar="NAME",
        help="score mods, weights, masks (all, or these of comparison/mod_rows.py), head dims and lengths",
    )
    parser.add_argument("--fp8", action="store_true", help="e4m3 attention, beside a GEMM of e4m3")
    parser.add_argument(
        "--decode",
        nargs="*",
        metavar="GROUP",
        help=f"steps of decoding, beside a read of the same bytes: {' and '.join(decode_cells.DEFAULT)}, or groups of "
        f"{', '.join(decode_cells.GROUPS)}",
    )
    parser.add_argument("--backward", action="store_true", help="gradients instead of the forward; cells may have /GQA")
    parser.add_argument(
        "--deterministic", action="store_true", help="with --backward: deterministic modes beside the free ones"
    )
    parser.add_argument(
        "--sustained",
        action="store_true",
        help="forward or --backward: samples of 0.3 s of calls in a row, L2 not flushed",
    )
    parser.add_argument(
        "--family", choices=("portable",), help="the table of the portable families; cells such as backward/f32/D64"
    )
    parser.add_argument("--draw", type=Path, metavar="FILE.json", help="only draw the curves of that run, beside it")
    chosen = parser.parse_args(arguments)
    chosen.peers = [name for name in chosen.peers.split(",") if name]
    for name in chosen.peers:
        if name not in contenders.CONTENDERS:
            parser.error(f"--peers: '{name}' is none of {', '.join(contenders.CONTENDERS[1:])}")
    if chosen.deterministic and not chosen.backward:
        parser.error("--deterministic is of --backward")
    if chosen.sustained and (chosen.mods is not None or chosen.fp8 or chosen.decode is not None or chosen.family):
        parser.error("--sustained is of the forward's and the backward's cells")
    try:
        if chosen.family is not None:
            trial = chosen.device == "cpu" and not chosen.only
            chosen.cells = portable_cells.trial() if trial else portable_cells.choose_cells(chosen.only, chosen.quick)
        elif chosen.decode is not None:
            chosen.cells = decode_cells.choose_cells(chosen.decode, chosen.only, chosen.quick)
        else:
            chosen.cells = (cells if chosen.backward else grid).choose_cells(chosen.only, chosen.quick)
    except ValueError as error:
        parser.error(f"--only: {error}" if chosen.decode is None else str(error))
    if chosen.rounds < 5:
        parser.error(f"--rounds is {chosen.rounds}; at least 5 are accepted")
    if chosen.quick:
        chosen.rounds = 5
    return chosen


def short(error):
    return f"{type(error).__name__}: {error}"[:2000]


class Comparison:
    def __init__(self, arguments, torch, lib):
        from comparison import timing

        self.arguments, self.torch = arguments, torch
        self.clock = timing.clock_of(torch, arguments.device, arguments.sustained)
        self.library = lib
        self.names = ["heddle", *(name for name in arguments.peers if name != "heddle")]
        self.shared = {}
        self.missing = {}  # peers that are not installed, and why
        torch.backends.cuda.matmul.allow_tf32 = False  # plain is f32
        torch.set_grad_enabled(False)
        device = torch.cuda.get_device_name(0) if arguments.device == "cuda" else "CPU, a trial"
        self.results = {
            "title": "Attention forward, bf16",
            "device": device,
            "date": f"{datetime.datetime.now():%Y-%m-%d %H:%M}",
            "versions": f"Heddle {self.library.version()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
            f"cuDNN {torch.backends.cudnn.version()}",
            "method": f"TFLOP/s (causal counts half), batch · S = {grid.TOKENS}, H · D = {grid.WIDTH}, [B, S, H, D] "
            f"strides, random normal inputs; {timing.method(arguments.sustained)} median of {arguments.rounds} "
            "interleaved rounds.",
            "rounds": arguments.rounds,
            "geomean_target": grid.GEOMEAN_TARGET,
            "contenders": self.names,
            "cells": [],
            "missing": self.missing,
        }

    def run(self):
        begin = time.monotonic()
        for cell in grid.in_time(self.arguments.cells, self.arguments.seconds, say):
            entry = grid.entry_of(cell, "target", "gemm_target")
            self.results["cells"].append(entry)
            try:
                self.compare(cell, entry["contenders"])
            except Exception as error:  # the other cells still count
                entry["contenders"].setdefault("heddle", {})["error"] = short(error)
            say(report.cell_line(entry) + f" | {time.monotonic() - begin:.0f} s")
            for name, ran in entry["contenders"].items():
                if ran.get("error"):
                    say(f"           {name}: {report.one_line(ran['error'])}")
            self.save()
        if not self.arguments.no_extras:
            from comparison import extras

            self.results["extras"] = extras.all_extras(
                self.torch, self.library, self.arguments.device, self.arguments.cells, self.clock
            )
            self.save()
        return self.results

    def compare(self, cell, entry):
        from comparison import criterion, timing

        inputs = contenders.Inputs(self.torch, cell, self.arguments.device)
        made, timed = {}, {}
        for name in self.names:
            if name in self.missing:
                continue
            try:
                made[name] = contenders.make(name, inputs, self.shared, self.library, grid.GEMM_SIZE)
                timed[name] = timing.Timed(made[name], self.clock)
                entry[name] = {}
            except ImportError as error:
                self.missing[name] = str(error)
                say(f"{name} is not installed: {error}")
            except Exception as error:
                entry[name] = {"error": short(error)}
        self.check(criterion.Reference, inputs, {name: made[name] for name in timed if name != "gemm"}, entry)
        first = [x.clone() for x in made["heddle"].result()] if "heddle" in timed else []
        for name, error in timing.interleave(timed, self.arguments.rounds).items():
            entry[name]["error"] = short(error)
        if first and not all(map(self.torch.equal, first, made["heddle"].result())):
            entry["heddle"]["error"] = "a later run gave other bits than the first"
        for name, one in timed.items():
            if one.samples and not entry[name].get("error"):
                ms = report.median(one.samples)
                flops = made[name].flops if name == "gemm" else cell.flops
                entry[name].update(ms=ms, tflops=flops / ms / 1e9, samples=one.samples, host_bound=one.host_bound)
        if "heddle" in made:
            entry["heddle"]["plan"] = made["heddle"].plan.explain()
        made.clear()
        timed.clear()
        if self.arguments.device == "cuda":
            self.torch.cuda.empty_cache()

    def check(self, make_reference, inputs, made, entry):
        """Judges what each contender's last call wrote."""
        try:
            reference = make_reference(self.torch, inputs.q, inputs.k, inputs.v, inputs.cell.causal)
        except Exception as error:
            entry.setdefault("heddle", {})["check_error"] = short(error)
            say(f"           no float64 reference: {short(error)}")
            return
        for name, contender in made.items():
            try:
                entry[name]["check"] = reference.judge(*contender.result())
            except Exception as error:
                entry[name]["check_error"] = short(error)

    def save(self):
        out = self.arguments.out
        if out:
            out.mkdir(parents=True, exist_ok=True)
            name = named("compare", self.arguments)
            (out / f"{name}.json").write_text(json.dumps(self.results, indent=1))
            (out / f"{name}.md").write_text(report.markdown(self.results))


def draw(results, path):
    """Whether the curves could be drawn."""
    try:
        from comparison import draw as curves

        if not curves.cells_with_curves(results):
            say("no curves: all cells have grouped queries")
            return True
        curves.draw(results, path)
    except ImportError as error:
        say(f"no curves: {error}. Where Matplotlib is installed: compare.py --draw {path.with_suffix('.json')}")
        return False
    say(f"wrote {path}")
    return True


def compare_mods(chosen, torch, lib):
    from comparison import mod_rows, mods, shapes

    unknown = set(chosen.mods) - {mod.name for mod in mod_rows.MODS}
    if unknown:
        say(f"--mods: '{min(unknown)}' is none of {', '.join(repr(mod.name) for mod in mod_rows.MODS)}")
        return 2
    wanted = [mod for mod in mod_rows.MODS if not chosen.mods or mod.name in chosen.mods]
    length = mod_rows.LENGTH if chosen.device == "cuda" else 256
    comparison = mods.Comparison(torch, lib, chosen.device, chosen.rounds, say, length, chosen.peers)
    entries = comparison.run(mods=wanted)
    shape_entries = []
    if not chosen.mods:
        of_shapes = shapes.Comparison(torch, lib, chosen.device, chosen.rounds, say, length, chosen.peers)
        shape_entries = of_shapes.run()
    results = {"mods": entries, "shapes": shape_entries, "missing": comparison.missing}
    text = mods.markdown(entries, comparison.missing)
    if shape_entries:
        text += "\n" + shapes.markdown(shape_entries, of_shapes.missing)
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "mods.json").write_text(json.dumps(results, indent=1))
        (chosen.out / "mods.md").write_text(text)
    print(json.dumps(results, indent=1) if chosen.json else text, flush=True)
    verdicts = [mods.verdict(entry) for entry in entries] + [shapes.verdict(entry) for entry in shape_entries]
    return 1 if "ERROR" in verdicts or "WRONG" in verdicts else 0


def compare_fp8(chosen, torch, lib):
    from comparison import fp8

    trial = {} if chosen.device == "cuda" else {"lengths": (128, 192), "tokens": 192}
    entries = fp8.Comparison(torch, lib, chosen.device, chosen.rounds, say, **trial).run()
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "fp8.json").write_text(json.dumps(entries, indent=1))
        (chosen.out / "fp8.md").write_text(fp8.markdown(entries))
    print(json.dumps(entries, indent=1) if chosen.json else fp8.markdown(entries), flush=True)
    return 1 if any(fp8.verdict(entry) in ("ERROR", "WRONG") for entry in entries) else 0


def compare_decode(chosen, torch, lib):
    from comparison.decode import run as decode

    trial = chosen.device == "cpu" and not chosen.only
    picked = decode_cells.trial() if trial else chosen.cells
    families = () if chosen.no_extras else decode.FAMILIES
    comparison = decode.Comparison(torch, lib, chosen.device, chosen.rounds, say, picked, chosen.seconds, families)
    entries = comparison.run(lambda now: save(chosen, "decode", now, decode.markdown(now, comparison.missing)))
    print(json.dumps(entries, indent=1) if chosen.json else decode.markdown(entries, comparison.missing), flush=True)
    return 1 if any(decode.verdict(entry) in ("ERROR", "WRONG") for entry in entries) else 0


def compare_backward(chosen, torch, lib):
    from comparison.backward import mods, report as backward_report, run

    if chosen.mods is not None:
        names = [mod.name for mod in mods.MODS]
        unknown = set(chosen.mods) - set(names)
        if unknown:
            say(f"--mods: '{min(unknown)}' is none of {', '.join(map(repr, names))}")
            return 2
        results = mods.Comparison(torch, lib, chosen, say).run()
        name, text, failed = "backward_mods", mods.markdown(results), mods.failed(results)
    else:
        results = run.Comparison(torch, lib, chosen, say).run(
            lambda now: save(chosen, named("backward", chosen), now, backward_report.markdown(now))
        )
        name = named("backward", chosen)
        text, failed = backward_report.markdown(results), backward_report.failed(results)
    save(chosen, name, results, text)
    if chosen.out and chosen.mods is None:
        draw(results, chosen.out / f"{name}.svg")
    print(json.dumps(results, indent=1) if chosen.json else text, flush=True)
    return 1 if failed else 0


def compare_portable(chosen, torch, lib):
    from comparison.portable import report as portable_report, run

    results = run.Comparison(torch, lib, chosen, say).run(
        lambda now: save(chosen, "portable", now, portable_report.markdown(now))
    )
    text = portable_report.markdown(results)
    save(chosen, "portable", results, text)
    print(json.dumps(results, indent=1) if chosen.json else text, flush=True)
    return 1 if portable_report.failed(results) else 0


def named(name, chosen):
    """The stem of the files' names, which tells how the cells were timed."""
    return f"{name}_sustained" if chosen.sustained else name


def save(chosen, name, results, text):
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / f"{name}.json").write_text(json.dumps(results, indent=1))
        (chosen.out / f"{name}.md").write_text(text)


def main(arguments):
    chosen = read_arguments(arguments)
    # Heddle finds NVRTC among the packages of the python3 that stands first in PATH: let that be this one.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    if chosen.draw:
        return 0 if draw(json.loads(chosen.draw.read_text()), chosen.draw.with_suffix(".svg")) else 1
    try:
        import torch

        torch.set_grad_enabled(False)
        lib = library.Library(library.find_library(chosen.library))
    except (ImportError, OSError, library.HeddleError) as error:
        say(f"compare.py: {error}")
        return 2
    if chosen.family is not None:
        return compare_portable(chosen, torch, lib)
    if chosen.backward:
        return compare_backward(chosen, torch, lib)
    if chosen.mods is not None:
        return compare_mods(chosen, torch, lib)
    if chosen.fp8:
        return compare_fp8(chosen, torch, lib)
    if chosen.decode is not None:
        return compare_decode(chosen, torch, lib)
    comparison = Comparison(chosen, torch, lib)
    say(f"{comparison.results['device']}; {comparison.results['versions']}")
    results = comparison.run()
    if chosen.out:
        draw(results, chosen.out / f"{named('compare', chosen)}.svg")
    print(json.dumps(results, indent=1) if chosen.json else report.markdown(results), flush=True)
    verdicts = report.summary(results)["verdicts"]
    return 1 if verdicts["WRONG"] or verdicts["ERROR"] or verdicts["UNCHECKED"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
