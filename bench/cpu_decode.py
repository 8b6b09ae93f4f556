#!/usr/bin/env python3
"""Decoding on the CPU beside torch's scaled_dot_product_attention, in one process and in turns.

    python bench/cpu_decode.py [--all] [--threads N] [--seconds S] [--library FILE] [FILTER]

The library is called through c.h (bench/comparison/library.py). Keys and values are dense, [B, Hkv, S, D]; torch gets
enable_gqa. torch has no 8-bit caches, so it gets bf16 ones there, twice the bytes. Microseconds are the best of all turns, of
processor time with one thread; `torch` is torch's time divided by ours. Both results are compared before anything is timed.
"""

import argparse
import math
import time

import torch
from comparison import library

NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fn: "e4m3"}
ROWS = ((8, 8, 1), (8, 8, 4), (32, 8, 1), (64, 8, 1), (32, 8, 4), (64, 1, 1), (32, 8, 16))  # query heads, kv heads, queries
MOST_BYTES = 1 << 30


def cells(everything):
    for dtype in NAMES:
        for batch in (1, 4, 16) if everything else (1,):
            for keys in (1024, 8192, 32768) if everything else (1024, 8192):
                for rows in ROWS:
                    for dim in (128, 64) if everything else (128,):
                        if 2 * batch * keys * rows[1] * dim * dtype.itemsize <= MOST_BYTES:
                            yield dtype, batch, keys, *rows, dim


def view(tensor):
    return library.tensor(tensor.data_ptr(), NAMES[tensor.dtype], tensor.shape, tensor.stride())


def measure(lib, cell, threads, seconds):
    dtype, batch, keys, q_heads, kv_heads, q_rows, dim = cell
    q_dtype = torch.bfloat16 if dtype.itemsize == 1 else dtype
    q = torch.randn(batch, q_heads, q_rows, dim).to(q_dtype)
    k, v = (torch.randn(batch, kv_heads, keys, dim).to(dtype) for _ in range(2))
    o = torch.empty_like(q)
    tensors = library.attention_tensors(view(q), view(k), view(v), view(o))
    plan = lib.plan(tensors, library.AttentionOptions(threads=threads))
    workspace = torch.empty(plan.workspace_bytes(), dtype=torch.uint8)
    options = library.RunOptions(workspace=workspace.data_ptr())
    k_torch, v_torch = k.to(q_dtype), v.to(q_dtype)

    def ours():
        plan.run(tensors, options)

    def theirs():
        return torch.nn.functional.scaled_dot_product_attention(q, k_torch, v_torch, enable_gqa=q_heads != kv_heads)

    ours()
    torch.testing.assert_close(o, theirs(), atol=2e-2 if q_dtype != torch.float32 else 1e-4, rtol=2e-2)
    clock = time.process_time if threads == 1 else time.perf_counter  # other people's work does not lengthen the former
    best = {ours: math.inf, theirs: math.inf}
    end, turns = time.perf_counter() + seconds, 0
    while turns < 5 or time.perf_counter() < end:
        turns += 1
        for call in best:
            began = clock()
            call()
            best[call] = min(best[call], clock() - began)
    return best[ours], best[theirs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--library")
    parser.add_argument("filter", nargs="?", default="")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    lib = library.Library(library.find_library(asked.library))
    print(f"{asked.threads} threads, torch {torch.__version__}")
    print(f"{'cell':<32} {'us':>10} {'torch us':>10} {'torch':>6}")
    for cell in cells(asked.all):
        dtype, batch, keys, q_heads, kv_heads, q_rows, dim = cell
        name = f"{NAMES[dtype]}_b{batch}_s{keys}_h{q_heads}_{kv_heads}_q{q_rows}_d{dim}"
        if asked.filter not in name:
            continue
        ours, theirs = measure(lib, cell, asked.threads, asked.seconds)
        print(f"{name:<32} {ours * 1e6:10.1f} {theirs * 1e6:10.1f} {theirs / ours:6.2f}", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
