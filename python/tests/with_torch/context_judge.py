"""Judges what ranks return for a problem of context_cases.py: against float64 over the whole sequence."""

import dataclasses
import os

import torch

import context_cases
from gradient_reference import dense
from heddle.torch import _eager, _forms
from heddle.torch._call import Call

ON_GPUS = os.environ.get("HEDDLE_TEST_DEVICE") == "cuda"
MOST = torch.cuda.device_count() if ON_GPUS else 4  # ranks


def kept_weights(problem):
    """1 / (1 - p) for each weight that dropout keeps, 0 for the others: of heddle in one process, over values that show
    each weight."""
    zeros = [torch.zeros(problem.batch, problem.heads, rows, 8, dtype=torch.float64)
             for rows in (problem.q_len, problem.kv_len)]
    shown = torch.eye(problem.kv_len, dtype=torch.float64).expand(problem.batch, problem.heads, -1, -1).contiguous()
    seed = torch.tensor(problem.options.get("dropout_seed", 17))
    call = Call(*zeros, shown, weight=_forms.DROPOUT, captures={"dropout_seed": seed},
                params={"dropout_p": problem.dropout})
    return _eager.run(call)[0] * problem.kv_len


def in_dtype(problem, dtype):
    """Results and gradients over the whole sequence by torch's own operations in `dtype`, of the problem's inputs."""
    leaves = [x.to(dtype).requires_grad_() for x in problem.inputs()]
    real = torch.float64 if dtype == torch.float64 else torch.float32
    learned = {name: x.detach().to(real).requires_grad_() for name, x in problem.learned().items()}
    name = "documents" if problem.form == "documents" else problem.mask
    mask_mod = context_cases.mask_of(dataclasses.replace(problem, mask=name))
    out, lse = dense(*leaves, context_cases.score_of(problem, learned), mask_mod, sinks=learned.get("sinks"),
                     scale=problem.options.get("scale"), factors=kept_weights(problem) if problem.dropout else None)
    d_out, d_lse = problem.incoming()
    gradients = context_cases.gradients_of((out, lse), (*leaves, *learned.values()), d_out.to(out.dtype),
                                           d_lse.to(lse.dtype))
    return {"out": out.detach(), "lse": lse.detach(),
            **dict(zip(("d_query", "d_key", "d_value", *(f"d_{name}" for name in learned)), gradients))}


def joined(problem, replies):
    """The ranks' rows in the order of the sequence, and the sums of what each has a part of."""
    made = {}
    for name in replies[0]:
        if name in ("q", "kv", "received", "crossed", "starts", "granules"):
            continue
        parts = [reply[name] for reply in replies]
        places = {"d_key": "kv", "d_value": "kv", "out": "q", "lse": "q", "max_scores": "q", "d_query": "q"}.get(name)
        if places is None:
            made[name] = parts[0] if problem.options.get("reduce_captures") else sum(parts)
            continue
        rows = torch.cat([reply[places] for reply in replies])
        assert torch.equal(rows.sort()[0], torch.arange(rows.numel()))
        made[name] = torch.cat(parts, dim=2).index_select(2, rows.argsort())
    return made


def assert_right(problem, replies):
    """Against float64: at most twice the error of torch's plain operations in the problem's dtype, and a few
    roundings."""
    got, want = joined(problem, replies), in_dtype(problem, torch.float64)
    plain = want if problem.dtype == torch.float64 else in_dtype(problem, problem.dtype)
    for name, wanted in want.items():
        assert got[name].shape == wanted.shape, name
        assert got[name].dtype in (problem.dtype, torch.float32)
        finite = wanted.isfinite()
        assert torch.equal(finite, got[name].isfinite()), name
        if not finite.any():
            continue
        error, allowed = ((x[name][finite].double() - wanted[finite]).abs().max().item() for x in (got, plain))
        largest = max(1.0, wanted[finite].abs().max().item())
        unit = 1e-12 if problem.dtype == torch.float64 else 16 * torch.finfo(problem.dtype).eps
        assert error <= 2 * allowed + unit * largest, f"{name}: {error}, of torch {allowed}"


def fitting(problem):
    """The problem on as many ranks as there are GPUs; processes on the CPU are as many as it asks for."""
    return dataclasses.replace(problem, ranks=min(problem.ranks, MOST)) if ON_GPUS else problem


def run(ranks, problem):
    problem = fitting(problem)
    replies = ranks.results("compute", problem, ranks=problem.ranks)
    assert_right(problem, replies)
    return replies
