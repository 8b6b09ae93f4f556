#!/usr/bin/env python3
"""Mods and masks of the CPU's forward beside plain causal attention, in one process and in turns.

    python bench/cpu_mods.py [--seconds S] [--keys N] [--dim D] [--dtype T] [--library FILE] [--before FILE] [FILTER]

One thread, B 1 and 2 heads, processor time. Each turn calls every mod of every library once. `us` is the least of all turns,
`plain` the time as a multiple of plain causal attention's of the same library and turn (the median), `before` the other
library's time divided by this one's (the median).
"""

import argparse
import ctypes
import statistics
import time

import torch
from comparison import library
from cpu_decode import view

HEADS = 2
CAUSAL = "q_idx >= kv_idx"
# name: score_mod, mask_mod, weight_mod
MODS = {
    "causal": (None, CAUSAL, None),
    "full": (None, None, None),
    "alibi": ("score + slopes[h] * (kv_idx - q_idx)", CAUSAL, None),
    "softcap": ("30 * tanh(score / 30)", CAUSAL, None),
    "softcap50_large": ("50 * tanh(score * 12 / 50)", CAUSAL, None),
    "bias": ("score + bias[h, q_idx, kv_idx]", CAUSAL, None),
    "dropout": (None, CAUSAL, "where(random_uniform(1, b, h, q_idx, kv_idx) < 0.1, 0.0, 1.1111112)"),
    "window256": (None, "q_idx >= kv_idx and q_idx - kv_idx <= 255", None),
    "window1024": (None, "q_idx >= kv_idx and q_idx - kv_idx <= 1023", None),
    "documents": (None, "q_idx >= kv_idx and ids[q_idx] == ids[kv_idx]", None),
    "softcap_window1024": ("50 * tanh(score / 50)", "q_idx >= kv_idx and q_idx - kv_idx <= 1023", None),
}


class Calls:
    """The mods of one library on the same tensors."""

    def __init__(self, lib, asked, names):
        generator = torch.Generator().manual_seed(1)
        dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[asked.dtype]
        shape = (1, HEADS, asked.keys, asked.dim)
        self.q, self.k, self.v = (torch.randn(*shape, generator=generator).to(dtype) for _ in range(3))
        slopes = torch.tensor([2.0 ** (-8 * (i + 1) / HEADS) for i in range(HEADS)])
        bias = torch.randn(HEADS, asked.keys, asked.keys, generator=generator) if "bias" in names else slopes
        starts = torch.randperm(asked.keys, generator=generator)[: asked.keys // 512]
        ids = torch.zeros(asked.keys, dtype=torch.int32).index_fill_(0, starts, 1).cumsum(0).to(torch.int32)
        self.captures = {"slopes": slopes, "bias": bias, "ids": ids}
        self.kept, self.results = [], {}
        self.calls = {name: self.call(lib, name) for name in names}

    def bindings(self, text):
        used = [name for name in self.captures if name + "[" in text]
        views = [self.tensor(self.captures[name]) for name in used]
        pairs = (library.Capture * max(1, len(used)))(
            *(library.Capture(name.encode(), ctypes.pointer(at)) for name, at in zip(used, views))
        )
        self.kept += [views, pairs]
        return library.Bindings(captures=pairs, capture_count=len(used))

    @staticmethod
    def tensor(x):
        dtype = {torch.float32: "f32", torch.int32: "i32", torch.bfloat16: "bf16"}[x.dtype]
        return library.tensor(x.data_ptr(), dtype, x.shape, x.stride())

    def call(self, lib, name):
        o = self.results[name] = torch.empty_like(self.q)
        tensors = library.attention_tensors(view(self.q), view(self.k), view(self.v), view(o))
        mods = MODS[name]
        bindings = self.bindings(" ".join(filter(None, mods)))
        score, mask, weight = (text.encode() if text else None for text in mods)
        options = library.AttentionOptions(
            threads=1, score_mod=score, mask_mod=mask, weight_mod=weight, bindings=ctypes.pointer(bindings)
        )
        plan = lib.plan(tensors, options)
        workspace = torch.empty(plan.workspace_bytes(), dtype=torch.uint8)
        run_options = library.RunOptions(workspace=workspace.data_ptr(), bindings=ctypes.pointer(bindings))
        self.kept += [bindings, options, workspace]

        def run():
            plan.run(tensors, run_options)

        run()
        return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of all turns together")
    parser.add_argument("--keys", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--library")
    parser.add_argument("--before", help="another library, which takes turns")
    parser.add_argument("filter", nargs="?", default="")
    asked = parser.parse_args()
    names = [name for name in MODS if name == "causal" or any(part in name for part in asked.filter.split(","))]
    libraries = [Calls(library.Library(library.find_library(asked.library)), asked, names)]
    if asked.before:
        libraries.append(Calls(library.Library(asked.before), asked, names))
    times = [{name: [] for name in names} for _ in libraries]
    end = time.perf_counter() + asked.seconds
    while len(times[0]["causal"]) < 5 or time.perf_counter() < end:
        for name in names:
            for calls, seen in zip(libraries, times):
                began = time.process_time()
                calls.calls[name]()
                seen[name].append(time.process_time() - began)
    print(f"{asked.dtype}, S {asked.keys}, D {asked.dim}, {len(times[0]['causal'])} turns")
    print(f"{'mod':<20} {'us':>9} {'plain':>6}" + (f" {'us':>9} {'plain':>6} {'before':>7} {'differ by':>9}" if asked.before else ""))
    for name in names:
        row = f"{name:<20}"
        for seen in times:
            plain = statistics.median(own / causal for own, causal in zip(seen[name], seen["causal"]))
            row += f" {min(seen[name]) * 1e6:9.0f} {plain:6.2f}"
        if asked.before:
            row += f" {statistics.median(old / new for new, old in zip(times[0][name], times[1][name])):7.3f}"
            row += f" {(libraries[0].results[name].float() - libraries[1].results[name].float()).abs().max().item():9.2g}"
        print(row)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
