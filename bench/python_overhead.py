#!/usr/bin/env python3
"""What a call costs beside its arithmetic: the time of small calls through the Python package, and of importing it.

    PYTHONPATH=build/python/python bench/python_overhead.py

Each figure is the best of 7 rounds, on [1, 1, 4, 8] f32, where the arithmetic takes well under a microsecond. `import` is
a process of its own, less one that imports NumPy alone; best of 7, too.
"""

import subprocess
import sys
import time
import timeit

import numpy as np

import heddle

ROUNDS, CALLS = 7, 5000


def microseconds(call):
    call()
    return min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def import_milliseconds(program):
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True)
        best = min(best, time.perf_counter() - began)
    return best * 1e3


def main():
    nothing, with_numpy = import_milliseconds("pass"), import_milliseconds("import numpy")
    both = import_milliseconds("import numpy, heddle")
    print(f"{'import numpy':36}{with_numpy - nothing:8.1f} ms")
    print(f"{'import heddle, after numpy':36}{both - with_numpy:8.1f} ms")

    q = k = v = np.ones((1, 1, 4, 8), np.float32)
    out, slopes, ids = np.empty_like(q), np.ones(1, np.float32), np.zeros(4, np.int32)
    causal = heddle.mods.causal()
    both_masks = heddle.mods.causal() & heddle.mods.documents(ids)
    mask = heddle.BlockMask.build(causal, 4, 4)
    plan = heddle.AttentionPlan(q, k, v)
    with_score = heddle.AttentionPlan(q, k, v, score_mod=heddle.mods.alibi(slopes))
    workspace = plan.workspace()
    scale = type("Scale", (), {"by": 2.0})()
    calls = {
        "attention": lambda: heddle.attention(q, k, v),
        "attention, out": lambda: heddle.attention(q, k, v, out=out),
        "attention, kept score mod": lambda: heddle.attention(
            q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)),
        "attention, score mod not kept": lambda: heddle.attention(
            q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score * scale.by),
        "attention, mods.causal()": lambda: heddle.attention(q, k, v, mask_mod=causal),
        "attention, causal & documents": lambda: heddle.attention(q, k, v, mask_mod=both_masks),
        "attention, block_mask": lambda: heddle.attention(q, k, v, block_mask=mask),
        "plan.run": lambda: plan.run(q, k, v),
        "plan.run, out, workspace": lambda: plan.run(q, k, v, out=out, workspace=workspace),
        "plan.run, other captures": lambda: with_score.run(q, k, v, captures={"slopes": slopes}),
    }
    for name, call in calls.items():
        print(f"{name:36}{microseconds(call):8.2f} us")


if __name__ == "__main__":
    main()
