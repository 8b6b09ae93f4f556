"""Figures beside throughput: compilation, the disk cache, the host's cost of a run, CUDA graphs."""

import ctypes
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from comparison import contenders, report

CHILD = Path(__file__).with_name("compile_child.py")
CHILD_SECONDS = 120

COMPILE_TARGET_S = 1.5
BOTH_COMPILE_TARGET_S = 2.5  # forward and backward
DISK_TARGET_MS = 20
RUN_TARGET_US = 8


def plan_in_child(library, device, cells, cache, backward=False):
    """What compile_child.py prints for these cells, with that folder as the kernel cache."""
    names = ["--backward"] * backward + [cell.name for cell in cells]
    done = subprocess.run(
        [sys.executable, str(CHILD), str(library.path.resolve()), device, *names],
        text=True,
        capture_output=True,
        timeout=CHILD_SECONDS,
        # NVRTC keeps a cache of its own, of which a cold compilation must know nothing.
        env={**os.environ, "HEDDLE_CACHE_DIR": str(cache), "CUDA_CACHE_DISABLE": "1"},
    )
    if done.returncode != 0:
        raise RuntimeError(f"planning in a fresh process failed: {done.stderr.strip()[-600:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def compile_times(library, device, cells, backward=False):
    """Finds the cell that compiles longest, then times it in a fresh process: cold, and from the disk cache. `backward`:
    both passes together."""
    target = BOTH_COMPILE_TARGET_S if backward else COMPILE_TARGET_S
    what = "forward and backward together" if backward else "the slowest kernel"
    with tempfile.TemporaryDirectory() as folder:
        survey = plan_in_child(library, device, cells, Path(folder) / "survey", backward)
        again = plan_in_child(library, device, cells, Path(folder) / "survey", backward)
        # The first one paid for the opening of NVRTC, so it may look slowest without being it.
        slowest = max(survey[1:] or survey, key=lambda entry: entry["seconds"])["cell"]
        cell = next(cell for cell in cells if cell.name == slowest)
        cold = plan_in_child(library, device, [cell], Path(folder) / "cold", backward)[0]
        disk = min(
            (plan_in_child(library, device, [cell], Path(folder) / "cold", backward)[0] for _ in range(3)),
            key=lambda entry: entry["seconds"],
        )
    context = cold["context_seconds"]
    disk_ms, open_ms = 1e3 * disk["seconds"], 1e3 * report.median([entry["seconds"] for entry in again[1:] or again])
    return {
        "cold_compile": {
            "what": f"cold compile of {what} ({slowest}), fresh process",
            "seconds": cold["seconds"],
            "context_seconds": context,
            "survey": survey,
            "text": f"{cold['seconds']:.2f} s" + (f" (the CUDA context before it: {context:.2f} s)" if context else ""),
            "target_text": f"<= {target} s",
            "ok": cold["seconds"] <= target,
        },
        "disk_cache": {
            "what": f"the same from the disk cache, fresh process ({slowest})",
            "ms": disk_ms,
            "later_ms": open_ms,
            "again": again,
            "text": f"{disk_ms:.1f} ms; {open_ms:.1f} ms once the library is open",
            "target_text": f"<= {DISK_TARGET_MS} ms",
            "ok": disk_ms <= DISK_TARGET_MS,
        },
    }


def run_cost(torch, library, device, cell, clock, sets=4, burst=64, bursts=41):
    """What a planned run costs the host when all pointers change from one to the next."""
    ours = contenders.Heddle(contenders.Inputs(torch, cell, device), library)
    rotated, kept = [], []
    for seed in range(sets):
        inputs = contenders.Inputs(torch, cell, device, seed)
        o, lse = torch.empty_like(inputs.q), torch.empty_like(ours.lse)
        kept.append((inputs, o, lse))
        rotated.append(ours.tensors_of(inputs, o, lse))
    run, handle, options = library.c.heddle_plan_run, ours.plan.handle, ctypes.byref(ours.options)
    tensors = [ctypes.byref(rotated[i % sets]) for i in range(burst)]
    for at in tensors[:sets]:
        library.check(run(handle, at, options))
    clock.synchronize()

    costs, floors = [], []
    version = library.c.heddle_c_version
    for _ in range(bursts):
        begin = time.perf_counter_ns()
        status = 0
        for at in tensors:
            status |= run(handle, at, options)
        costs.append((time.perf_counter_ns() - begin) / burst / 1e3)
        if status:
            raise RuntimeError(f"a run failed: {library.c.heddle_last_error().decode()}")
        clock.synchronize()
        begin = time.perf_counter_ns()
        for _ in tensors:
            version()
        floors.append((time.perf_counter_ns() - begin) / burst / 1e3)
    cost, floor = report.median(costs), report.median(floors)
    return {
        "what": f"host's cost of a planned run, all pointers changed ({cell.name})",
        "us": cost,
        "ctypes_us": floor,
        "samples": costs,
        "text": f"{cost:.1f} us, of which calling through ctypes {floor:.1f} us",
        "target_text": f"<= {RUN_TARGET_US} us",
        "ok": cost <= RUN_TARGET_US,
    }


def graph_capture(torch, library, device, cell):
    """A CUDA graph captures a run; its replay computes what the run does, into memory that was NaN."""
    ours = contenders.Heddle(contenders.Inputs(torch, cell, device), library)
    ours()
    torch.cuda.synchronize()
    o, lse = ours.o.clone(), ours.lse.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours.options.stream = torch.cuda.current_stream().cuda_stream
        ours()
    ours.o.fill_(math.nan)
    ours.lse.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    same = torch.equal(ours.o, o) and torch.equal(ours.lse, lse)
    return {
        "what": f"CUDA graph: captured and replayed ({cell.name})",
        "text": "the same bits" if same else "another result",
        "target_text": "the same bits",
        "ok": same,
    }


def attempt(what, take):
    """A figure, or why it could not be taken."""
    try:
        return take()
    except Exception as error:
        return {"what": what, "error": f"{type(error).__name__}: {error}"}


def compile_extras(library, device, cells, backward=False):
    times = attempt("cold compile, disk cache", lambda: compile_times(library, device, cells, backward))
    return {"cold_compile": times} if "error" in times else times


def all_extras(torch, library, device, cells, clock):
    """Every figure that could be taken; one that failed tells why."""
    cell = next((cell for cell in cells if cell.d == 128 and cell.s == 2048), cells[0])
    results = compile_extras(library, device, cells)
    results["run_cost"] = attempt("host's cost of a planned run", lambda: run_cost(torch, library, device, cell, clock))
    if device != "cpu":
        results["graph"] = attempt("CUDA graph", lambda: graph_capture(torch, library, device, cell))
    return results
