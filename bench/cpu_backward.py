#!/usr/bin/env python3
"""The CPU's backward beside that of torch's scaled_dot_product_attention, in one process and in turns.

    python bench/cpu_backward.py [--threads N] [--seconds S] [--library FILE] [--before FILE] [FILTER]

Cells are bf16_s2048_d64, bf16_s2048_d64_causal and the like, B 1 and 8 heads. Times are medians of all turns, of the backward
alone; `torch` and `before` are as bench/cpu_forward.py says, GFLOP/s count 10 S S D a head, half of that for causal. Gradients
are compared before anything is timed. A line before the first cell of a kernel says whether AMX computes (docs/notes/cpu_amx.md);
HEDDLE_CPU_AMX=off gives the f32 kernel's times. OMP_WAIT_POLICY is passive unless it is set, as bench/cpu_forward.py says.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before OpenMP reads it

import torch  # noqa: E402
from comparison import contenders, library  # noqa: E402
from cpu_decode import view  # noqa: E402
from cpu_forward import HEADS, print_table  # noqa: E402


def close(ours, theirs):
    """Torch rounds dq, dk and dv once a block of keys or queries, ours once."""
    scale = theirs.float().abs().max()
    torch.testing.assert_close(ours.float() / scale, theirs.float() / scale, atol=3e-2, rtol=0)


def prepare(lib, cell, threads):
    _, dtype, keys, dim, causal = cell
    q, k, v, d_o = (torch.randn(1, HEADS, keys, dim).to(dtype) for _ in range(4))
    o, lse = torch.empty_like(q), torch.empty(1, HEADS, keys)
    options = library.AttentionOptions(threads=threads, mask_mod=contenders.MASKS[causal])
    forward = library.attention_tensors(view(q), view(k), view(v), view(o), view(lse))
    lib.plan(forward, options).run(forward, library.RunOptions())
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    names = ("q", "k", "v", "o", "lse", "d_o", "dq", "dk", "dv")
    tensors = library.backward_tensors(dict(zip(names, map(view, (q, k, v, o, lse, d_o, *gradients)))))
    plan = lib.plan(tensors, options)
    workspace = torch.empty(plan.workspace_bytes(), dtype=torch.uint8)
    run_options = library.RunOptions(workspace=workspace.data_ptr())
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    result = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)

    def ours(_kept=(q, k, v, o, lse, d_o, gradients, workspace)):
        plan.run(tensors, run_options)

    def theirs():
        return torch.autograd.grad(result, leaves, d_o, retain_graph=True)

    ours()
    for own, other in zip(gradients, theirs()):
        close(own, other)
    return plan.explain(), ours, theirs


if __name__ == "__main__":
    print_table(__doc__, prepare, "cpu_backward", 10)
