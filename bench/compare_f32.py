#!/usr/bin/env python3
"""Kernels of f32 beside torch's scaled_dot_product_attention, forward and backward, on one GPU in one call.

    compare_f32.py --programs build/release/bench [--dims 64,128] [--lengths 2048,8192] [--only forward] [--times N]

For exact products and then for those of tf32: first SDPA, each of its backends that takes f32; a cell's best counts.
Then bench_forward_mma_variants and bench_backward_mma_variants, which hold each kernel to the criterion of heddle/check.h
before they time it. Batch * S = 16384, H * D = 2048; TFLOP/s, causal counts half; L2 is flushed before each call.
Exits 1 if a kernel fails the criterion.
"""

import argparse
import itertools
import re
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from comparison import timing  # noqa: E402
from comparison.sdpa import Sdpa  # noqa: E402

TOKENS, COLUMNS = 16384, 2048
PRODUCTS = {"forward": 2, "backward": 5}


def flops(products, length, causal):
    return 2 * products * TOKENS * length * COLUMNS * (0.5 if causal else 1)


def inputs_of(torch, dim, length):
    """q, k, v and dO as [B, H, S, D]."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    shape = (TOKENS // length, length, COLUMNS // dim, dim)
    return [torch.randn(shape, device="cuda", generator=generator).transpose(1, 2) for _ in range(4)]


def best_of_sdpa(torch, clock, dim, length, causal, direction, rounds):
    """(TFLOP/s, backend's name)."""
    *inputs, d_o = inputs_of(torch, dim, length)
    best = (0.0, "none")
    for name in ("EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION"):
        try:
            of_call = Sdpa(torch, name, *inputs, causal, d_o if direction == "backward" else None)
            call = timing.Timed(of_call, clock)
            for _ in range(rounds):
                call.sample()
        except RuntimeError:
            continue  # takes no f32, or no matrices of that size
        finally:
            torch.cuda.empty_cache()
        ms = statistics.median(call.samples)
        best = max(best, (flops(PRODUCTS[direction], length, causal) / ms / 1e9, name.split("_")[0].lower()))
        del call, of_call
    return best


def numbers(text):
    return [int(one) for one in text.split(",")]


CELL = re.compile(r"  (full|causal) (\d+): [\d.]+ ms ([\d.]+)")


def time_kernels(program, arguments, peers, tf32):
    """Runs a program of bench, and repeats its lines with ratios. Whether all kernels met the criterion."""
    command = [str(program), "--dtype", "f32", "--dim", arguments.dims, "--lengths", arguments.lengths]
    command += ["--times", str(arguments.times), "--tf32", str(int(tf32))]
    dim = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ran:
        for line in ran.stdout:
            line = line.rstrip("\n")
            dim = int(line.split()[1]) if line.startswith("D ") else dim
            match = CELL.fullmatch(line)
            if match:
                mask, length, rate = match.groups()
                line += f"   of SDPA {float(rate) / max(1e-9, peers[dim, int(length), mask][0]):.2f}"
            print(line, flush=True)
    return ran.returncode == 0


def main(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="the folder of the benchmark programs")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--lengths", default="2048,8192")
    parser.add_argument("--only", choices=tuple(PRODUCTS), help="one direction alone")
    parser.add_argument("--products", choices=("exact", "tf32", "both"), default="both")
    parser.add_argument("--times", type=int, default=2, help="calls in a sample of a kernel (%(default)s)")
    arguments = parser.parse_args(words)
    import torch

    clock = timing.GpuClock(torch)
    print(f"{torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}", flush=True)
    right = True
    for direction in PRODUCTS:
        if arguments.only not in (None, direction):
            continue
        for tf32 in (False, True) if arguments.products == "both" else (arguments.products == "tf32",):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            products = "tf32" if tf32 else "exact"
            peers = {}
            dims, lengths = numbers(arguments.dims), numbers(arguments.lengths)
            for dim, mask, length in itertools.product(dims, ("full", "causal"), lengths):
                found = best_of_sdpa(torch, clock, dim, length, mask == "causal", direction, 3)
                peers[dim, length, mask] = found
                print(f"SDPA {direction} {products} D {dim} {mask} {length}: {found[0]:.1f} ({found[1]})", flush=True)
            print(f"\n{direction} {products}", flush=True)
            program = arguments.programs / f"bench_{direction}_mma_variants"
            right = time_kernels(program, arguments, peers, tf32) and right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
