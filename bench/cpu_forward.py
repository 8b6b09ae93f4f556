#!/usr/bin/env python3
"""The CPU's forward beside torch's scaled_dot_product_attention, in one process and in turns.

    python bench/cpu_forward.py [--threads N] [--seconds S] [--library FILE] [--before FILE] [FILTER]

Cells are bf16_s2048_d64, bf16_s2048_d64_causal and the like, B 1 and 8 heads. Times are medians of all turns, of processor time
with one thread; `torch` is torch's time divided by ours, the median of all turns; `before` is that of the other library's
time, which takes turns with both. GFLOP/s count 4 S S D a head, half of that for causal. Results are compared before anything
is timed.
A line before the first cell of a kernel says whether AMX computes (docs/notes/cpu_amx.md). OpenMP's threads would spin on
after each of torch's turns, and take processors from the next one of ours: OMP_WAIT_POLICY is passive unless it is set.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before OpenMP reads it

import torch  # noqa: E402
from comparison import contenders, library  # noqa: E402
from cpu_decode import NAMES, view  # noqa: E402

HEADS = 8


def cells():
    for dtype in (torch.bfloat16, torch.float32):
        for keys in (128, 512, 2048, 8192):
            for dim in (64, 128):
                for causal in (False, True):
                    yield f"{NAMES[dtype]}_s{keys}_d{dim}{'_causal' if causal else ''}", dtype, keys, dim, causal


def prepare(lib, cell, threads):
    """explain()'s text, our call and torch's."""
    _, dtype, keys, dim, causal = cell
    q, k, v = (torch.randn(1, HEADS, keys, dim).to(dtype) for _ in range(3))
    o = torch.empty_like(q)
    tensors = library.attention_tensors(view(q), view(k), view(v), view(o))
    plan = lib.plan(tensors, library.AttentionOptions(threads=threads, mask_mod=contenders.MASKS[causal]))
    workspace = torch.empty(plan.workspace_bytes(), dtype=torch.uint8)
    options = library.RunOptions(workspace=workspace.data_ptr())

    def ours(_kept=(o, workspace)):
        plan.run(tensors, options)

    def theirs():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    ours()
    torch.testing.assert_close(o, theirs(), atol=2e-2 if dtype != torch.float32 else 1e-4, rtol=2e-2)
    return plan.explain(), ours, theirs


def take_turns(calls, threads, seconds):
    """Each call's times."""
    clock = time.process_time if threads == 1 else time.perf_counter  # other people's work does not lengthen the former
    times = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while len(times[0]) < 7 or time.perf_counter() < end:
        for call, seen in zip(calls, times):
            began = clock()
            call()
            seen.append(clock() - began)
    return times


def ratio(times, others):
    """Of what takes turns; neighbours in time share the machine's clock."""
    return statistics.median(other / own for own, other in zip(times, others))


def print_table(about, prepare, kind, flops_of_a_pair):
    """prepare(library, cell, threads): explain()'s text, our call and torch's. `kind`: of plan, cpu_forward or cpu_backward.
    `flops_of_a_pair`: of a query, a key and a dimension."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--library")
    parser.add_argument("--before", help="another library, which takes turns")
    parser.add_argument("filter", nargs="?", default="bf16")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    libraries = [library.Library(library.find_library(asked.library))]
    if asked.before:
        libraries.append(library.Library(asked.before))
    print(f"{asked.threads} threads, torch {torch.__version__}")
    print(f"{'cell':<24} {'us':>10} {'GFLOP/s':>8} {'torch us':>10} {'GFLOP/s':>8} {'torch':>6}{' before' if asked.before else ''}")
    kernel = None
    for cell in cells():
        name, _, keys, dim, causal = cell
        if asked.filter not in name:
            continue
        prepared = [prepare(lib, cell, asked.threads) for lib in libraries]
        explained, theirs = prepared[0][0], prepared[0][2]
        times = take_turns([ours for _, ours, _ in prepared] + [theirs], asked.threads, asked.seconds)
        own, torchs = statistics.median(times[0]), statistics.median(times[-1])
        summary = next((line.strip() for line in explained.splitlines() if f"{kind} in" in line), "")
        if summary != kernel:
            kernel = summary
            print(kernel)
        flops = flops_of_a_pair * HEADS * keys * keys * dim * (0.5 if causal else 1) * 1e-9
        row = f"{own * 1e6:10.1f} {flops / own:8.0f} {torchs * 1e6:10.1f} {flops / torchs:8.0f} {ratio(times[0], times[-1]):6.2f}"
        row += f" {ratio(times[0], times[1]):6.3f}" if asked.before else ""
        print(f"{name:<24} {row}", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        print_table(__doc__, prepare, "cpu_forward", 4)
