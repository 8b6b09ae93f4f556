"""A program of a user's, which mypy --strict takes as it is: each wrong line is marked, and an unused mark is an
error."""

import numpy as np

import heddle
from heddle import mods


def mine(score: heddle.Expr, b: heddle.Expr, h: heddle.Expr, q_idx: heddle.Expr, kv_idx: heddle.Expr) -> heddle.Expr:
    return heddle.where(kv_idx > q_idx, score, 2.0 * score) + abs(q_idx - kv_idx) // 2


q = k = v = np.ones((1, 2, 4, 8), np.float32)
o = heddle.attention(q, k, v, score_mod=mine, mask_mod=mods.causal() & mods.documents(np.zeros(4, np.int32)))
o, lse = heddle.attention(q, k, v, return_lse=True, scale=0.5, params={"n": 3})
mask = heddle.BlockMask.build("kv_idx < n", 4, 4, heads=2, block=(2, 2), params={"n": 3})
density: float = mask.density
run: heddle.Run = mask.row(0, 0, 0)[0]
plan = heddle.AttentionPlan(q, k, v, block_mask=mask, threads=1)
o = plan.run(q, k, v, out=np.empty_like(q), sinks=None)
report: heddle.CheckReport = heddle.check(q, k, v, o, block_mask=mask)
error: float = report.o.max_error
text: str = heddle.explain(q, k, v, normalizer="none").text
narrow: heddle.Tensor = heddle.Tensor.of(q).to("bfloat16")
o = heddle.attention(narrow, narrow, narrow)
heddle.merge_states([q], [q[..., 0]])
heddle.append_kv(k, v, k.copy(), v.copy(), kv_lengths=np.zeros(1, np.int32))
o, lse = heddle.attention(q, k, v, return_lse=True)
gradients: heddle.Gradients = heddle.attention_backward(
    q, k, v, o, lse, q, d_captures=["slopes"], score_mod="score + slopes[h]", captures={"slopes": q[0, :, 0, 0]},
    dq=np.empty_like(q), dv=False, backend="reference")
judged: heddle.GradientReport = heddle.check_backward(
    q, k, v, o, lse, q, gradients=heddle.Gradients(dk=gradients.dk), backend="reference")
again: heddle.Gradients = heddle.BackwardPlan(q, k, v, o, lse, q, backend="reference").run(q, k, v, o, lse, q)

if text == "never":
    heddle.attention([1.0], k, v)  # type: ignore[arg-type]
    heddle.attention(q, k, v, mask_mod=3)  # type: ignore[arg-type]
    heddle.attention(q, k, v, masks=None)  # type: ignore[call-arg]
    heddle.AttentionPlan(q, k, v, scale="x")  # type: ignore[arg-type]
    heddle.AttentionPlan(q, k, v, masks=None)  # type: ignore[call-arg]
    heddle.attention_backward(q, k, v, o, lse, q, dq=3)  # type: ignore[arg-type]
    heddle.attention_backward(q, k, v, o, lse)  # type: ignore[call-arg]
    heddle.BlockMask.build(mine, "4", 4)  # type: ignore[arg-type]
    count: int = mask.shape  # type: ignore[assignment]
    heddle.exp(3).typo  # type: ignore[attr-defined]
