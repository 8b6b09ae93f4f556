#!/usr/bin/env python3
"""What a call that autograd records costs beside its arithmetic: heddle.torch and torch's own attention, in one run.

    PYTHONPATH=build/release/python bench/recorded_overhead.py

[1, 2, 8, 8] f32 on the CPU, where the arithmetic takes about a microsecond; varlen_attn has its 8 rows in two sequences.
Processor time of the calling thread, best of 15 rounds of 300 calls that take turns between all calls. `of SDPA` is relative to
torch's SDPA with the same arguments, of the same run.
"""

import time

import torch
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa

import heddle.torch
from heddle.torch import create_block_mask, flex_attention, varlen_attn
from heddle.torch import scaled_dot_product_attention as heddle_sdpa

ROUNDS, CALLS, LENGTH = 15, 300, 8


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def microseconds(calls):
    """Of each call, by name."""
    best = dict.fromkeys(calls, float("inf"))
    for round_ in range(ROUNDS + 1):
        for name, call in calls.items():
            began = time.thread_time()
            for _ in range(CALLS):
                call()
            if round_ > 0:
                best[name] = min(best[name], (time.thread_time() - began) / CALLS * 1e6)
    return best


def main():
    torch.set_num_threads(1)
    q, k, v = (torch.randn(1, 2, LENGTH, 8, requires_grad=True) for _ in range(3))
    k_one, v_one = (torch.randn(1, 1, LENGTH, 8, requires_grad=True) for _ in range(2))
    slopes, incoming = torch.rand(2), torch.randn(1, 2, LENGTH, 8)
    packed = [torch.randn(LENGTH, 2, 8, requires_grad=True) for _ in range(3)]
    starts, of_packed = torch.tensor([0, 3, LENGTH], dtype=torch.int32), torch.randn(LENGTH, 2, 8)
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, "cpu")

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    forwards = {
        "SDPA": lambda: torch_sdpa(q, k, v),
        "SDPA, causal": lambda: torch_sdpa(q, k, v, is_causal=True),
        "SDPA, GQA": lambda: torch_sdpa(q, k_one, v_one, enable_gqa=True),
        "flex_attention": lambda: flex_attention(q, k, v),
        "flex_attention, causal": lambda: flex_attention(q, k, v, block_mask=mask),
        "flex_attention, ALiBi, causal": lambda: flex_attention(q, k, v, alibi, mask),
        "flex_attention, GQA": lambda: flex_attention(q, k_one, v_one, enable_gqa=True),
        "heddle's SDPA, causal": lambda: heddle_sdpa(q, k, v, is_causal=True),
        "varlen_attn": lambda: varlen_attn(*packed, starts, starts, 5, 5),
        "varlen_attn, causal": lambda: varlen_attn(*packed, starts, starts, 5, 5, window_size=(-1, 0)),
    }
    inputs = {name: packed if "varlen" in name else (q, k_one, v_one) if "GQA" in name else (q, k, v) for name in forwards}
    beside = {name: f"SDPA, {name.rpartition(', ')[2]}" if ", " in name else "SDPA" for name in forwards}

    def whole(name):
        loss_gradient = of_packed if "varlen" in name else incoming
        return lambda: torch.autograd.grad(forwards[name](), inputs[name], loss_gradient)

    recorded = microseconds(forwards)
    both = microseconds({name: whole(name) for name in forwards})
    print(f"torch {torch.__version__}, heddle {heddle.__version__}; microseconds of the thread's processor time")
    print(f"{'':32}{'forward':>10}{'backward':>10}{'both':>8}{'of SDPA':>10}")
    for name in forwards:
        backward, ratio = both[name] - recorded[name], both[name] / both[beside[name]]
        print(f"{name:32}{recorded[name]:10.1f}{backward:10.1f}{both[name]:8.1f}{ratio:10.2f}")


if __name__ == "__main__":
    main()
